"""Models in several files, as the reference writer makes them: the same plan from any part, a missing part named."""

import json
import subprocess

from families_numpy import Mixtral, random_tensors, write_model
from oracle import BUILD, ROOT, WORK, finish, report, run


def weights(plan):
    """The tensors of a plan, without what names its source."""
    manifest = json.loads(run("atsi-plan", "--info", plan, "--json"))
    return manifest["program"]


def main():
    family = Mixtral()
    tensors = random_tensors(family, 3)
    whole = WORK / "whole.gguf"
    write_model(whole, family, tensors)
    write_model(WORK / "parts.gguf", family, tensors, split_max_tensors=13)
    parts = sorted(WORK.glob("parts-*.gguf"))
    report("the writer made several files", len(parts) > 2, f"{len(parts)}")

    run("atsi-plan", whole, "--vram", 0, "--quiet", "-o", WORK / "whole.atsp")
    tokens = WORK / "ids"
    tokens.write_text("1 2 3 4 5")
    answer = run("atsi-run", WORK / "whole.atsp", "--tokens-in", tokens, "-n", 8, "--temp", 0, "--print-ids", "--quiet")
    for part in (parts[0], parts[-1]):
        plan = WORK / "parts.atsp"
        run("atsi-plan", part, "--vram", 0, "--quiet", "-o", plan)
        report(f"opened from {part.name}: the same program", weights(plan) == weights(WORK / "whole.atsp"))
        again = run("atsi-run", plan, "--tokens-in", tokens, "-n", 8, "--temp", 0, "--print-ids", "--quiet")
        report(f"opened from {part.name}: the same tokens", again == answer)

    parts[1].rename(WORK / "elsewhere.gguf")
    done = subprocess.run([BUILD / "atsi-plan", parts[0], "--vram", "0", "-o", WORK / "x.atsp"], capture_output=True, cwd=ROOT)
    report("a missing part is named", done.returncode == 2 and parts[1].name.encode() in done.stderr, done.stderr.decode().strip())
    finish()


if __name__ == "__main__":
    main()
