#pragma once
// Four demos of moving a vision model from one device to many. Each is one function on the
// public API and one TOML file, and returns a page: a table for the terminal, pictures for the browser. `hpcdl
// demo 1` to `hpcdl demo 4` run them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hpcdl/train/progress.h"
#include "tools/page/page.h"

namespace hpcdl::demos {

struct Options {
  std::string data;            // an archive or folder of images; empty: a procedural set with the shape of CIFAR-10
  std::string device = "cpu";  // or cuda
  std::int64_t epochs = 0;     // 0: as many as the demo suggests
  bool quick = false;          // a tiny model and few images, to see that everything works
  std::filesystem::path out;   // folder for everything that is made
  Console console = {};
  /// Runs `hpcdl WORDS...` in a separate process and returns its stdout: used to start ranks.
  std::function<std::string(const std::vector<std::string>& words)> hpcdl;
};

/// 1: SimpleCNN on one device; stopped half way, as a scheduler would, and resumed.
lab::Page baseline(const Options& options);
/// 2: the same model on several ranks, one process each, and on several replicas that one process drives.
lab::Page data_parallel(const Options& options);
/// 3: ResNet-18 in f32 and in mixed precision: time, memory, accuracy.
lab::Page mixed_precision(const Options& options);
/// 4: where time and memory go: loader threads, batch size, precision, ranks; and all of them together.
lab::Page profiling(const Options& options);

}  // namespace hpcdl::demos
