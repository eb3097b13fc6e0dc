"""Steps of several processes in turns: each waits on its standard input while the others compute."""

import json
import pathlib
import random
import subprocess
import threading
import time


class Side:
    """A program that prints "ready", and for every line it is sent one JSON object. A line may be the number of steps to take. With a limit, a
    program without an answer for that many seconds is killed, and waiting for it raises RuntimeError."""

    def __init__(self, command, env=None, limit=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.name = pathlib.Path(command[0]).name
        self.limit = limit
        self.line("before it was ready", lambda line: line.strip() == "ready")

    def line(self, when, wanted):
        late = threading.Timer(self.limit, self.process.kill) if self.limit else None
        if late:
            late.start()
        try:
            for line in self.process.stdout:  # libraries may print, too
                if wanted(line):
                    return line
        finally:
            if late:
                late.cancel()
        raise RuntimeError(f"{self.name} ended {when}" + (f", or said nothing for {self.limit} s" if late else ""))

    def step(self, count=1):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.line("in a step", lambda line: line.startswith("{")))

    def has_ended(self, seconds=2):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # it has already ended
            pass
        if not self.has_ended(min(self.limit, 30) if self.limit else None):
            self.process.kill()
            self.process.wait()


def rounds(sides, count, pause=0.0, steps=1):
    """{name: [result of each step]}. The lab's protocol (tools/compare/protocol.h) for processes: a random order, then its reverse."""
    samples, order, draw = {name: [] for name in sides}, list(sides), random.Random(1)
    for r in range(count):
        draw.shuffle(order) if r % 2 == 0 else order.reverse()
        for name in order:
            samples[name].append(sides[name].step(steps))
            time.sleep(pause)  # lets its idle threads go to sleep
    return samples
