"""A method for tests whose configurations say what to do: sleep, eat memory, raise, die."""

import functools
import os
import subprocess
import sys
import time

import numpy as np

from pipelines.benchmark.methods import Method

N_POINTS = 600
"""Fewer than these are a trial run, on which nothing happens."""


def acting(configs, name="acting", share=None):
    """Return a method with these configurations, and an act for what they share."""
    return Method(
        name, functools.partial(given, configs), functools.partial(act_before, share or {}), act
    )


def given(configs, facts, n_draws, seed):
    return configs


def act_before(config, x, configs):
    return act(x, config, None)


def act(x, config, shared):
    """Return labels in threes, of which the first `wrong` are noise."""
    if len(x) < N_POINTS:
        return np.zeros(len(x))
    if shared is None and "scratch" in config:
        time.sleep(config["scratch"])
    if "child" in config:
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({config['child']})"])
    if "sleep" in config:
        time.sleep(config["sleep"])
    if "eat" in config:
        held = []
        for _ in range(config["eat"]):
            held.append(np.ones(1 << 20))
            time.sleep(0.02)
    if "raise" in config:
        raise ValueError(config["raise"])
    if "exit" in config:
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(config["exit"])
    labels = np.arange(len(x)) % 3
    labels[: config.get("wrong", 0)] = -1
    return labels[: config.get("length", len(x))]
