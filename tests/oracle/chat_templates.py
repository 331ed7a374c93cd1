"""Chat templates as the models bring them, reduced to plain conversations: which special tokens, roles, white space and defaults.

Each is (vocabulary's special tokens, begin-of-sequence, template). They are written from the facts of the models' own templates; the
test data's originals (Qwen 3, Gemma 3) are compared too.
"""

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"]
MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
PHI = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
PHI4 = ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>"]
MINIMAX = ["]~!b[", "[e~[", "]~b]"]
SEED = ["<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"]
HARMONY = ["<|startoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>"]


def chatml(default: str = "", thinks: bool = False, trims: bool = False, reply: str = "") -> str:
    """default: system text without one; thinks: earlier answers lose their thinking; reply: what an answer begins with."""
    parts = []
    if default:
        parts += ["{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n" + default + "<|im_end|>\\n' }}{% endif %}"]
    if trims:
        parts += ["{% macro render_content(c) %}{{ c|trim }}{% endmacro %}"]
    parts += ["{% for m in messages %}{% set c = " + ("render_content(m.content)" if trims else "m.content") + " %}"]
    if thinks:
        parts += ["{% if m.role == 'assistant' and '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"]
    parts += ["{{ '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}{% endfor %}"]
    parts += ["{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n" + reply + "' }}{% endif %}"]
    return "".join(parts)


def llama(dates: str = "") -> str:
    header = "'<|start_header_id|>{}<|end_header_id|>\\n\\n'"
    system = (
        "{{ '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: ' }}"
        + dates
        + "{{ '\\n\\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content|trim }}{% set messages = messages[1:] %}"
        + "{% endif %}{{ '<|eot_id|>' }}"
    )
    return (
        "{{ bos_token }}"
        + (system if dates else "")
        + "{% for m in messages if not (" + str(bool(dates)) + " and m.role == 'system') %}"
        + "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content|trim + '<|eot_id|>' }}{% endfor %}"
        + "{% if add_generation_prompt %}{{ " + header.format("assistant") + " }}{% endif %}"
    )


GLM4 = """[gMASK]<sop>{% for m in messages %}{% if m.role == 'system' %}<|system|>
{{ m.content }}{% else %}<|{{ m.role }}|>
{{ m.content.split('</think>')[-1].strip() if m.role == 'assistant' else m.content.strip() }}{% endif %}{% endfor %}
{% if add_generation_prompt %}<|assistant|>REPLY{% endif %}"""

GLM45 = """[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' %}<think></think>
{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""

GLM47 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ '</think>' }}"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)

HARMONY_TEMPLATE = """{{- "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\n" }}
{{- "Knowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: medium\\n\\n" }}
{{- "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>" }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- "<|start|>developer<|message|># Instructions\\n\\n" + m.content + "\\n\\n<|end|>" }}
{%- elif m.role == 'user' %}{{- "<|start|>user<|message|>" + m.content + "<|end|>" }}
{%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + m.content + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{% endif %}"""

# {0}: before the user's text, {1}: behind it, {2}: before an answer, {3}: whether the system text goes to the last user.
MISTRAL_TEMPLATE = """{{{{ bos_token }}}}{{% set ns = namespace(carrier=-1, system='') %}}
{{% for m in messages %}}{{% if m.role == 'system' %}}{{% set ns.system = m.content + '\\n\\n' %}}{{% endif %}}
{{% if m.role == 'user' and (ns.carrier < 0 or {3}) %}}{{% set ns.carrier = loop.index0 %}}{{% endif %}}{{% endfor %}}
{{% for m in messages %}}{{% if m.role == 'user' %}}
{{{{ '{0}' + (ns.system if loop.index0 == ns.carrier else '') + m.content + '{1}' }}}}
{{%- elif m.role == 'assistant' %}}{{{{ '{2}' + (m.content|trim if '{2}' else m.content) + eos_token }}}}{{%- endif %}}{{% endfor %}}"""

MISTRAL_V7 = """{{ bos_token }}{% for m in messages %}
{%- if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"""

PHI3_TEMPLATE = """{% for m in messages %}{% if m.role == 'system' and m.content %}{{'<|system|>
' + m.content + '<|end|>
'}}{% elif m.role == 'user' %}{{'<|user|>
' + m.content + '<|end|>
'}}{% elif m.role == 'assistant' %}{{'<|assistant|>
' + m.content + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}"""
PHI4_MINI_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PHI4_TEMPLATE = (  # the newer of two that render the same
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
MINIMAX_TEMPLATE = (
    "{% set ns = namespace(turns=messages, system='You are a helpful assistant.') %}"
    "{% if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% set ns.turns = messages[1:] %}{% endif %}"
    "{{ ']~!b[' ~ ']~b]system' ~ '\\n' ~ ns.system ~ '[e~[\\n' }}{% for m in ns.turns %}"
    "{% if m.role == 'user' %}{{ ']~b]user' ~ '\\n' ~ m.content ~ '[e~[\\n' }}{% else %}{% set c = m.content %}"
    "{% if '</think>' in c %}{% set c = c.split('</think>')[-1].strip('\\n') %}{% endif %}{{ ']~b]ai' ~ '\\n' ~ c ~ '[e~[\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai' ~ '\\n' ~ '<think>' ~ '\\n' }}{% endif %}"
)
SEED_TEMPLATE = (
    "{% for m in messages %}{{ '<seed:bos>' + m.role + '\n' + (m.content|trim if m.role == 'assistant' else m.content) + '<seed:eos>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<seed:bos>assistant\n' }}{% endif %}"
)

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(first='', turns=messages) %}"
    "{% if messages[0].role == 'system' %}{% set ns.first = messages[0].content + '\n\n' %}{% set ns.turns = messages[1:] %}{% endif %}"
    "{% for m in ns.turns %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
    " + (ns.first if loop.first else '') + m.content|trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

ERNIE_TEMPLATE = (
    "{{ '<|begin_of_sentence|>' }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n' }}"
    "{% elif m.role == 'user' %}{{ 'User: ' + m.content + '\n' }}{% else %}{{ 'Assistant: ' + m.content + '<|end_of_sentence|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)

QWEN25 = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

TEMPLATES = {
    "chatml": (CHATML, None, chatml()),
    "qwen1.5": (CHATML, None, chatml(default="You are a helpful assistant").replace("\\n", "\n")),
    "qwen2": (CHATML, None, chatml(default="You are a helpful assistant.")),
    "qwen2.5": (CHATML, None, chatml(default=QWEN25)),
    "qwen3": (CHATML, None, chatml(thinks=True)),
    "qwen3-thinking": (CHATML, None, chatml(thinks=True, reply="<think>\\n")),
    "qwen3.5": (CHATML, None, chatml(thinks=True, trims=True, reply="' }}{{ '<think>\\n")),
    "qwen3.5-nothink": (CHATML, None, "{% set x = enable_thinking is defined and enable_thinking is true %}"
                        + chatml(thinks=True, trims=True, reply="<think>\\n\\n</think>\\n\\n")),
    "llama3": (LLAMA, "<|begin_of_text|>", llama()),
    "llama3.1": (LLAMA, "<|begin_of_text|>", llama("{% set date_string = '26 Jul 2024' %}{{ date_string }}")),
    "llama3.2": (LLAMA, "<|begin_of_text|>", llama("{{ strftime_now('%d %b %Y') }}")),
    "gemma": (["<bos>", "<end_of_turn>", "<start_of_turn>"], "<bos>", GEMMA_TEMPLATE),
    "glm4": (GLM, None, GLM4.replace("REPLY", "")),
    "glm-z1": (GLM, None, GLM4.replace("REPLY", "\n<think>")),
    "glm4.5": (GLM, None, GLM45),
    "glm4.7": (GLM, None, GLM47),
    "phi3": (PHI, None, PHI3_TEMPLATE),
    "phi4-mini": (PHI, None, PHI4_MINI_TEMPLATE),
    "phi4": (PHI4, None, PHI4_TEMPLATE),
    "minimax-m2": (MINIMAX, "]~!b[", MINIMAX_TEMPLATE),
    "seed": (SEED, "<seed:bos>", SEED_TEMPLATE),
    "ernie": (["<s>", "</s>", "<|begin_of_sentence|>", "<|end_of_sentence|>"], None, ERNIE_TEMPLATE),
    "harmony": (HARMONY, None, HARMONY_TEMPLATE),
    "mistral": (MISTRAL[:2], "<s>", MISTRAL_TEMPLATE.format("[INST] ", " [/INST]", "", "false")),
    "mistral-v3": (MISTRAL[:4], "<s>", MISTRAL_TEMPLATE.format("[INST] ", "[/INST]", " ", "true")),
    "mistral-tekken": (MISTRAL[:4], "<s>", MISTRAL_TEMPLATE.format("[INST]", "[/INST]", "", "true")),
    "mistral-v7": (MISTRAL, "<s>", MISTRAL_V7),
}
