#!/usr/bin/env python3
"""Whether greedy tokens are those that another run would have chosen, as far as rounding goes.

    chosen.py LOGITS N_PROMPT IDS

LOGITS are the rows that a run gives for prompt and tokens together, IDS the tokens behind the prompt. Prints how many of them have
the largest logit of their row, and the largest gap between the largest logit and a chosen one, in standard deviations of the
row. Ids above the largest chosen one do not count: the padding of a vocabulary is never chosen. Exit code 1 when that gap is more than rounding explains (0.05)."""
import array
import statistics
import sys

LARGEST_GAP = 0.05


def main():
    path, n_prompt, ids_path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(ids_path, encoding="ascii") as ids_file:
        ids = [int(word) for word in ids_file.read().split()]
    n_same, largest, n_ids = 0, 0.0, max(ids) + 1
    with open(path, "rb") as logits:
        n_vocab = logits.seek(0, 2) // 4 // (n_prompt + len(ids))
        for k, token in enumerate(ids):
            row = array.array("f")
            logits.seek(4 * n_vocab * (n_prompt - 1 + k))
            row.fromfile(logits, n_vocab)
            gap = (max(row[:n_ids]) - row[token]) / statistics.pstdev(row[::101])
            n_same += gap == 0
            largest = max(largest, gap)
    print(f"{n_same} of {len(ids)} tokens have the largest logit, the largest gap of the others is {largest:.4f} standard deviations")
    sys.exit(largest > LARGEST_GAP)


main()
