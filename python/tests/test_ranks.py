"""How bench/gpu/ranks.py evaluates the tokens per second that its sides report; needs no GPU."""

import argparse
import contextlib
import io
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu"))

import ranks  # noqa: E402

ARGS = argparse.Namespace(buckets="200/80,400/160", rounds=3, steps=5, no_torch=False, limit=1)


def bars(rates, counts, **args):
    """The rows of train() by case, when each side reports its rate twice and an outlier once: medians count. Also the commands of each run."""
    runs = []

    def in_turns(commands, rounds, limit, torch=None):
        runs.append({**commands, **(torch or {})})
        return {name: [{"tokens_per_second": x} for x in (rates[name], 1e9, rates[name])] for name in runs[-1] if name in rates}

    table = ranks.Table()
    with mock.patch.object(ranks, "in_turns", in_turns), contextlib.redirect_stdout(io.StringIO()):
        ranks.train(table, counts, argparse.Namespace(**{**vars(ARGS), **args}))
    return {r["case"]: r for r in table.rows}, runs


class TestEfficiency(unittest.TestCase):
    TWO = {"hpcdl alone 0": 600e3, "hpcdl alone 1": 500e3, "hpcdl 2 200/80": 990e3, "hpcdl 2 400/160": 880e3, "together": 990e3, "apart": 1000e3, "torch": 900e3}
    OURS = "efficiency, 2 GPUs, buckets to 200 MB from 80 MB, against "

    def test_of_the_first_of_the_mean_and_of_the_slowest(self):
        self.assertEqual(ranks.efficiencies(990.0, [600.0, 500.0]), {"the first": 0.825, "their mean": 0.9, "the slowest": 0.99})
        same = ranks.efficiencies(1920.0, [500.0] * 4)
        self.assertEqual(set(same.values()), {0.96})

    def test_rows(self):
        rows, _ = bars(self.TWO, [2])
        for case, ratio in ((f"{self.OURS}the first alone", 0.825), (f"{self.OURS}their mean alone", 0.9), (f"{self.OURS}the slowest alone", 0.99),
                            ("efficiency, 2 GPUs, buckets to 400 MB from 160 MB, against their mean alone", 0.8), ("beside 2 GPUs without exchange", 0.99),
                            ("GPT-2 124M bf16 B=64, 2 GPUs", 1.1)):
            self.assertAlmostEqual(rows[case]["ratio"], ratio, 12, case)
        self.assertEqual({case: r["met"] for case, r in rows.items() if r["goal"] is not None},
                         {f"{self.OURS}their mean alone": False, "efficiency, 2 GPUs, buckets to 400 MB from 160 MB, against their mean alone": False, "GPT-2 124M bf16 B=64, 2 GPUs": True})

    def test_each_gpu_alone_and_two_of_four_against_theirs(self):
        four = {f"hpcdl alone {i}": x for i, x in enumerate((600e3, 400e3, 500e3, 500e3))}
        rows, runs = bars(four | {"hpcdl 2 200/80": 900e3, "hpcdl 4 200/80": 1600e3, "hpcdl 4 400/160": 1500e3, "together": 1600e3, "apart": 1600e3, "torch": 1600e3}, [2, 4])
        self.assertAlmostEqual(rows[f"{self.OURS}their mean alone"]["ratio"], 0.9)
        self.assertAlmostEqual(rows["efficiency, 4 GPUs, buckets to 200 MB from 80 MB, against the slowest alone"]["ratio"], 1.0)
        two, all_four, apart, torch = runs
        self.assertNotIn("hpcdl 2 400/160", two, "other buckets only on the largest number")
        self.assertEqual(all_four["hpcdl 4 400/160"][0][-1], "400/160:beside")
        self.assertEqual([all_four[f"hpcdl alone {i}"][1]["CUDA_VISIBLE_DEVICES"] for i in range(4)], list("0123"))
        self.assertEqual((set(apart), set(torch)), ({"together", "apart"}, {"together", "torch"}), "a GPU has no memory for more sides at once")
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="5,7"):
            self.assertEqual(ranks.on_gpu(1)["CUDA_VISIBLE_DEVICES"], "7")

    def test_without_torch(self):
        rows, runs = bars(self.TWO, [2], no_torch=True)
        self.assertFalse(any("torch" in side for run in runs for side in run))
        self.assertEqual(len(rows), 7)


if __name__ == "__main__":
    unittest.main()
