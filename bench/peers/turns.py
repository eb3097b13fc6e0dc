"""Steps of several processes in turns: each waits on its standard input while the others compute."""

import json
import pathlib
import random
import subprocess
import time


class Side:
    """A program that prints "ready", and for every line it is sent one JSON object. A line may be the number of steps to take."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.name = pathlib.Path(command[0]).name
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        raise RuntimeError(f"{self.name} ended before it was ready")

    def step(self, count=1):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries may print, too
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended in a step")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def rounds(sides, count, pause=0.0, steps=1):
    """{name: [what each step gave]}. The lab's protocol (hpcdl/lab/compare/protocol.h) for processes: a random order, and back through it."""
    samples, order, draw = {name: [] for name in sides}, list(sides), random.Random(1)
    for r in range(count):
        draw.shuffle(order) if r % 2 == 0 else order.reverse()
        for name in order:
            samples[name].append(sides[name].step(steps))
            time.sleep(pause)  # lets its idle threads go to sleep
    return samples
