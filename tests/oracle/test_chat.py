"""Rendered chat prompts against jinja2 (PyPI), which evaluates the models' templates.

ATSI_CHAT_TEMPLATES names a folder of *.jinja: templates as models bring them, each of which is then rendered equal or not recognised.
"""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import jinja2
from chat_templates import TEMPLATES
from gguf import GGUFReader, GGUFWriter, TokenType
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from oracle import BUILD, ROOT, WORK, finish, report, run
from tokenizer_texts import DATA

SYSTEMS = [None, "Be terse.", "  Answer in French,\nplease. "]
TALKS = [
    ["Hello"],
    ["  What is 2 + 2?\n", "4", "And 3 + 3?"],
    ["\n\nfirst", "<think>\nhm, 1\n</think>\n\nOne. ", " second ", "\nTwo\n", "café 你好 😀", "\n\n", "x"],
    ["a", "no </think> of </think>\nit", "{{ 7 * 7 }} {% if x %} 'quotes\"", "b", "\tend"],
]


def conversations():
    for system in SYSTEMS:
        for talk in TALKS:
            turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(talk)]
            yield ([{"role": "system", "content": system}] if system else []) + turns


class Generation(Extension):
    """{% generation %}: marks what a model is trained on, renders nothing."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def jinja_text(template: str, messages, bos: str, eos: str) -> str:
    """As transformers evaluates a template."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])

    def fail(message):
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, bos_token=bos or "", eos_token=eos)


def byte_tokens():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in printable}
    for b in range(256):
        names.setdefault(b, chr(256 + sum(1 for n in names.values() if ord(n) >= 256)))
    return [names[b] for b in range(256)]


def write_model(path, specials, bos, eos, template) -> None:
    """A vocabulary of bytes, some merges across white space, and the special tokens."""
    tokens = byte_tokens()
    space, newline = tokens[32], tokens[10]
    merges = [(newline, newline), ("h", "e"), (space, "s"), (newline * 2, newline), (space, space)]
    tokens += [a + b for a, b in merges]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + specials)
    writer.add_token_types([TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(specials))
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    if bos:
        writer.add_bos_token_id(len(tokens) + specials.index(bos))
        writer.add_add_bos_token(True)
    writer.add_eos_token_id(len(tokens) + specials.index(eos))
    writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_spm_model(path, specials, template) -> None:
    """Phi-3's kind: a SentencePiece vocabulary whose special tokens swallow the white space behind them."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "\u2581a", "he", "ll", "\u2581s"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 5]
    writer = GGUFWriter(path, "phi3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces + specials)
    writer.add_token_scores([-float(i) for i in range(len(pieces))] + [-1000.0] * len(specials))
    writer.add_token_types(kinds + [TokenType.CONTROL] * len(specials))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(len(pieces) + specials.index("<|end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def piped(program, *args, lines) -> list[list[int]]:
    done = subprocess.run([BUILD / "tools" / program, *map(str, args)], input="".join(line + "\n" for line in lines).encode(),
                          capture_output=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"{program} {args}: {done.stderr.decode(errors='replace')}")
    return [[int(i) for i in line.split()] for line in done.stdout.decode().split("\n")[:-1]]


def compare(name: str, model, template: str, bos, eos: str, specials, format_name: str = "") -> None:
    """format_name "": as the planner decides from the template in the file."""
    plan = model.with_suffix(".atsp")
    run("atsi-plan", model, "--vocab-only", "-o", plan)
    talks = list(conversations())
    texts = [jinja_text(template, messages, bos, eos) for messages in talks]
    expected = piped("tokenize", model, "--special", lines=[t.encode().hex() for t in texts])
    ours = piped("chat_prompt", plan, format_name, lines=[json.dumps(t) for t in talks])
    wrong = [i for i, ids in enumerate(ours) if ids != expected[i]]
    notes = [f"{texts[i]!r}: {ours[i]} {expected[i]}"[:900] for i in wrong[:2]]
    report(f"{name}: {len(talks)} conversations", not wrong, *([f"{len(wrong)} differ"] if wrong else []), *notes)
    no_injection(name, plan, specials, format_name)


def no_injection(name: str, plan, specials, format_name: str) -> None:
    """Special tokens written by the user are text: as many special ids as with another text in their place."""
    def talk(text):
        return json.dumps([{"role": role, "content": text} for role in ("system", "user", "assistant", "user")])

    hostile = "x " + " ".join(specials)
    ids = piped("chat_prompt", plan, format_name, lines=[talk(hostile), talk("harmless")])
    special_ids = {i[0] for i in piped_specials(plan, specials)}
    counts = [sum(i in special_ids for i in line) for line in ids]
    text = run("atsi-run", plan, "--detokenize", " ".join(map(str, ids[0]))).decode()
    good = counts[0] == counts[1] and text.count(hostile) >= 3
    note = f"{counts[0]} special tokens, {counts[1]} with a harmless text: {text!r}"[:600]
    report(f"{name}: special tokens in messages are text", good, *([] if good else [note]))


def piped_specials(plan, specials):
    for text in specials:
        yield [int(i) for i in run("atsi-run", plan, "--tokenize", "--parse-special", "-p", text).split()]


def compare_restated() -> None:
    for name, (specials, bos, template) in TEMPLATES.items():
        model = WORK / f"{name}.gguf"
        eos = specials[1]
        write_model(model, specials, bos, eos, template)
        compare(name, model, template, bos, eos, specials)


def compare_swallowed_space() -> None:
    specials, _, template = TEMPLATES["phi3"]
    model = WORK / "phi3-spm.gguf"
    write_spm_model(model, specials, template)
    compare("phi3 with SentencePiece", model, template, None, "<|end|>", specials)


def compare_real_vocabularies() -> None:
    """With the template that the file brings, where it has one."""
    harmony_marks, _, harmony = TEMPLATES["harmony"]
    for folder, bos, eos, specials in (("qwen3", None, "<|im_end|>", ["<|im_start|>", "<|im_end|>"]),
                                       ("gemma3", "<bos>", "<end_of_turn>", ["<start_of_turn>", "<end_of_turn>"]),
                                       ("gptoss", None, "<|return|>", harmony_marks)):
        packed = DATA / "tokenizers" / folder / "vocab.gguf.zst"
        if not packed.exists():
            report(f"vocabulary and template of {folder} # SKIP no {packed}", True)
            continue
        model = WORK / f"real-{folder}.gguf"
        subprocess.run(["zstd", "-q", "-d", "-o", model, packed], check=True)
        field = GGUFReader(model).fields.get("tokenizer.chat_template")
        template, format_name = (field.contents(), "") if field else (harmony, "harmony")
        compare(f"vocabulary and template of {folder}", model, template, bos, eos, specials, format_name)


# ---- templates in a folder ---------------------------------------------------------------------------------------------------

PLAIN = [["Hello"], ["What is 2 + 2?", "4", "And 3 + 3?"], ["first", "<think>\nhm, 1\n</think>\n\nOne.", "second"]]


def original_texts(template: str, bos, eos: str):
    """Of plain conversations, those that the template takes. One that drops system texts says nothing of how they look."""
    for system in (None, "Be terse."):
        for talk in PLAIN:
            turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(talk)]
            messages = ([{"role": "system", "content": system}] if system else []) + turns
            try:
                text = jinja_text(template, messages, bos, eos)
            except jinja2.TemplateError:
                continue
            if not system or system in text:
                yield messages, text


def differing(template: str, format_name: str) -> int:
    """How many conversations the format renders in another way than the template."""
    specials, bos, _ = TEMPLATES[format_name]
    model, plan = WORK / "folder.gguf", WORK / "folder.atsp"
    write_model(model, specials, bos, specials[1], template)
    run("atsi-plan", model, "--vocab-only", "--quiet", "-o", plan)
    pairs = list(original_texts(template, bos, specials[1]))
    if format_name == "mistral-v7":  # a page of instructions by default, which is not rendered
        pairs = [(messages, text) for messages, text in pairs if messages[0]["role"] == "system"]
    if format_name == "mistral":  # spaces that its vocabulary puts there, and every answer begins with
        pairs = [(messages, text.replace(" [INST]", "[INST]").replace("[/INST] ", "[/INST]")) for messages, text in pairs]
    expected = piped("tokenize", model, "--special", lines=[text.encode().hex() for _, text in pairs])
    ours = piped("chat_prompt", plan, "", lines=[json.dumps(messages) for messages, _ in pairs])
    return sum(a != b for a, b in zip(ours, expected, strict=True))


def detected(template: str) -> str:
    model, plan = WORK / "folder.gguf", WORK / "folder.atsp"
    write_model(model, ["<a>", "<b>"], None, "<b>", template)
    run("atsi-plan", model, "--vocab-only", "--quiet", "-o", plan)
    return json.loads(run("atsi-plan", "--info", plan, "--json")).get("chat_format", "")


def compare_folder() -> None:
    folder = os.environ.get("ATSI_CHAT_TEMPLATES")
    if not folder:
        report("templates of models # SKIP ATSI_CHAT_TEMPLATES names no folder", True)
        return
    for path in sorted(Path(folder).glob("*.jinja")):
        template = path.read_text()
        name = detected(template)
        n = differing(template, name) if name else 0
        report(f"{path.name}: {name or 'not recognised'}", n == 0, *([f"{n} conversations differ"] if n else []))


compare_restated()
compare_swallowed_space()
compare_real_vocabularies()
compare_folder()
finish()
