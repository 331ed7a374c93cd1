#!/usr/bin/env python3
"""Draws and sums up what timeline.py recorded.

    plot_timeline.py CSV SVG BASE... OTHER

Prints a token's median time in every phase for all policies, its rise over the first phase, and how much smaller OTHER's rise is
than that of each BASE. The picture has the first run of each: a line of medians over 9 tokens, a band for every phase."""
import csv
import statistics
import sys
from collections import defaultdict

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 380, 60, 46, 20, 50
COLOURS = ("#c0392b", "#d9a321", "#1f6fb2")
BANDS = ("#ffffff", "#f1ead9", "#e0ebf3", "#ffffff")


def load(path):
    rows = defaultdict(list)  # (policy, run) -> [(time_s, ms, phase)]
    phases = []
    with open(path, newline="") as file:
        for run, policy, phase, time_s, ms in csv.reader(file):
            rows[policy, run].append((float(time_s), float(ms), phase))
            if phase not in phases:
                phases.append(phase)
    return rows, phases


def phase_median(rows, policy, phase):
    """The median over runs of the run's median, so that a run counts once."""
    runs = [[ms for _, ms, name in tokens if name == phase] for (name, _), tokens in rows.items() if name == policy]
    return statistics.median(statistics.median(run) for run in runs if run)


def summarise(rows, phases, policies):
    before = {policy: phase_median(rows, policy, phases[0]) for policy in policies}
    for phase in phases:
        rises = {}
        for policy in policies:
            ms = phase_median(rows, policy, phase)
            rises[policy] = ms - before[policy]
            print(f"{phase:18} {policy:12} {ms:7.2f} ms a token, rise {rises[policy]:+7.2f} ms ({100 * rises[policy] / before[policy]:+.0f} %)")
        *bases, other = policies
        for base in bases:
            if phase != phases[0] and rises[base] > 0.02 * before[base]:
                saved = 100 * (1 - rises[other] / rises[base])
                word = "smaller" if saved >= 0 else "larger"
                print(f"{phase:18} the rise is {abs(saved):.0f} % {word} with {other} than with {base}")


def smooth(tokens):
    values = [ms for _, ms, _ in tokens]
    return [(t, statistics.median(values[max(0, i - 4): i + 5])) for i, (t, _, _) in enumerate(tokens)]


def text(x, y, words, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{words}</text>'


def draw(rows, phases, policies):
    first = {policy: next(tokens for (name, _), tokens in rows.items() if name == policy) for policy in policies}
    end = max(tokens[-1][0] for tokens in first.values())
    lines = {policy: smooth(tokens) for policy, tokens in first.items()}
    highest = 1.15 * max(ms for line in lines.values() for _, ms in line)

    def x(t):
        return LEFT + t / end * (WIDTH - LEFT - RIGHT)

    def y(ms):
        return HEIGHT - BOTTOM - ms / highest * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for i, phase in enumerate(phases):
        times = [t for tokens in first.values() for t, _, name in tokens if name == phase]
        if not times:
            continue
        out.append(f'<rect x="{x(min(times)):.1f}" y="{TOP}" width="{x(max(times)) - x(min(times)):.1f}" '
                   f'height="{HEIGHT - TOP - BOTTOM}" fill="{BANDS[i % len(BANDS)]}"/>')
        out.append(text(x((min(times) + max(times)) / 2), TOP - 6, phase, 'text-anchor="middle"'))
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if highest / s <= 8)
    for tick in range(0, int(highest) + 1, step):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ccc"/>')
        out.append(text(LEFT - 6, y(tick) + 4, tick, 'text-anchor="end"'))
    for tick in range(0, int(end) + 1, max(1, int(end / 10))):
        out.append(text(x(tick), HEIGHT - BOTTOM + 18, tick, 'text-anchor="middle"'))
    for policy, colour in zip(policies, COLOURS[-len(policies):]):
        points = " ".join(f"{x(t):.1f},{y(ms):.1f}" for t, ms in lines[policy])
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for i, (policy, colour) in enumerate(zip(policies, COLOURS[-len(policies):])):
        out.append(f'<rect x="{LEFT + 10 + 150 * i}" y="8" width="18" height="4" fill="{colour}"/>')
        out.append(text(LEFT + 34 + 150 * i, 15, policy))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "seconds", 'text-anchor="middle"'))
    out.append(text(16, HEIGHT / 2, "ms a token", f'text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})"'))
    return "\n".join(out + ["</svg>", ""])


def main():
    path, picture, *policies = sys.argv[1:]
    rows, phases = load(path)
    summarise(rows, phases, policies)
    with open(picture, "w") as file:
        file.write(draw(rows, phases, policies))


main()
