#pragma once
// A model and a text small enough that a test can train on them many times.

#include <signal.h>

#include <filesystem>
#include <string>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/train/observer.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

/// A fixed text similar to English, a few thousand words.
inline std::string toy_text() {
  static constexpr const char* kWords[] = {"the", "river", "runs",  "under", "a",   "stone", "bridge",
                                           "and", "small", "boats", "wait",  "for", "rain"};
  std::string text;
  std::uint32_t x = 12345;
  for (int i = 0; i < 6000; ++i) {
    x = x * 1664525u + 1013904223u;
    text += kWords[(x >> 16) % 13];
    text += (x >> 28) == 0 ? ".\n\n" : " ";
  }
  return text;
}

/// Fills `c` for a run in tmp/NAME on tmp/toy.txt, with a cache that the runs of one folder share.
inline void toy_config(RunConfig& c, const io::TempFolder& tmp, const std::string& name) {
  if (!std::filesystem::exists(tmp / "toy.txt")) io::write_file_atomic(tmp / "toy.txt", toy_text());
  c.model.family = io::Family::llama;
  c.model.layers = 2, c.model.heads = 2, c.model.width = 32, c.model.context = 32;
  c.data.text = {(tmp / "toy.txt").string()};
  c.data.cache = tmp / "cache";
  c.data.vocab_size = 300;
  c.train.steps = 6, c.train.batch = 3, c.train.lr = 3e-3, c.train.warmup = 2, c.train.eval_every = 2,
  c.train.eval_batches = 3;
  c.train.threads = 2;
  c.checkpoint.keep = 0;
  c.output = tmp / name;
}

/// Raises SIGTERM after a step (1-based) and before the evaluation that follows it.
struct StopsBeforeEvaluation : Observer {
  explicit StopsBeforeEvaluation(std::int64_t behind) : stop_behind(behind) {}
  void end_step(std::int64_t step) override {
    if (step + 1 == stop_behind) ::raise(SIGTERM);
  }
  std::int64_t stop_behind;
};

inline Hooks watched_by(Observer& observer) {
  Hooks hooks;
  hooks.observer = &observer;
  return hooks;
}

}  // namespace hpcdl::train
