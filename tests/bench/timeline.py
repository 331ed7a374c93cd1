#!/usr/bin/env python3
"""Time per token while the machine's load changes: runs a generation that prints ids and stamps every one as it arrives.

    timeline.py CSV RUN POLICY PHASES LOAD_PROGRAM COMMAND...

PHASES is SECONDS:NAME:LOAD_OPTIONS, separated by semicolons; a phase without options is unloaded. The first starts with the
eighth token. Rows `run,policy,phase,time_s,ms` are added to CSV: time since the first phase began, time that the token took.
COMMAND is ended by SIGTERM after the last phase."""
import csv
import os
import signal
import subprocess
import sys
import threading
import time

FIRST_TOKEN = 8


class Stamps:
    """The moments at which words arrive on a pipe."""

    def __init__(self, pipe):
        self.times = []
        self.thread = threading.Thread(target=self.read, args=(pipe.fileno(),), daemon=True)
        self.thread.start()

    def read(self, fd):
        while data := os.read(fd, 4096):
            now = time.monotonic()
            # Every id but the first comes with the blank before it, in a write of its own.
            self.times += [now] * (data.count(b" ") + (not self.times))

    def wait_for(self, n_tokens, process):
        while len(self.times) < n_tokens:
            if process.poll() is not None:
                sys.exit(f"the generation ended after {len(self.times)} tokens, exit code {process.returncode}")
            time.sleep(0.002)


def start_load(program, options):
    """The load, once it says that it is on."""
    if not options:
        return None
    load = subprocess.Popen([program, *options.split()], stdout=subprocess.PIPE, text=True)
    if load.stdout.readline().strip() != "on":
        sys.exit(f"{program} {options}: does not start")
    return load


def end_load(load):
    if load:
        load.terminate()
        print("   ", load.stdout.read().strip())
        load.wait()


def main():
    path, run, policy, phases, program, *command = sys.argv[1:]
    phases = [phase.split(":") for phase in phases.split(";")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    stamps = Stamps(process.stdout)
    stamps.wait_for(FIRST_TOKEN, process)
    begin = time.monotonic()
    changes = []
    for seconds, name, options in phases:
        load = start_load(program, options)
        changes.append((time.monotonic(), name))
        print(f"    {name}: from {changes[-1][0]:.1f} s on")
        time.sleep(float(seconds))
        end_load(load)
        changes.append((time.monotonic(), None))
    process.send_signal(signal.SIGTERM)
    process.wait()
    stamps.thread.join()
    rows = []
    for before, now in zip(stamps.times, stamps.times[1:]):
        phase = [name for since, name in changes if since <= before]
        # A token that began while a load came or went belongs to none.
        if phase and phase[-1]:
            rows.append((run, policy, phase[-1], f"{before - begin:.4f}", f"{(now - before) * 1e3:.3f}"))
    with open(path, "a", newline="") as file:
        csv.writer(file).writerows(rows)


main()
