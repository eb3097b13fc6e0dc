#pragma once
// Compares the files of runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"

namespace hpcdl::train {

/// The lines of metrics.jsonl without values that depend on the clock, or on how ranks share the work.
inline std::string timeless_metrics(const std::filesystem::path& run) {
  std::istringstream in(io::read_file(run / "metrics.jsonl"));
  std::string out;
  for (std::string line; std::getline(in, line);) {
    auto j = io::parse_json(line, "metrics.jsonl");
    for (const char* key : {"tokens_per_second", "samples_per_second", "sol_percent", "data_wait_percent",
                            "save_stall_ms", "comm_percent", "hidden_percent", "exposed_percent", "wire_bytes"})
      j.erase(key);
    out += j.dump() + "\n";
  }
  return out;
}

/// The same without what depends on where state lies.
inline std::string placeless_metrics(const std::filesystem::path& run) {
  std::istringstream in(timeless_metrics(run));
  std::string out;
  for (std::string line; std::getline(in, line);) {
    auto j = io::parse_json(line, "metrics.jsonl");
    for (const char* key : {"disk_bytes", "host_bytes"}) j.erase(key);
    out += j.dump() + "\n";
  }
  return out;
}

/// The largest difference of any weight, f32, of two folders with the same tensors.
inline double weights_apart(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto one = io::TensorFolder::open(a), two = io::TensorFolder::open(b);
  EXPECT_EQ(one.tensors().size(), two.tensors().size());
  double worst = 0;
  for (const auto& t : one.tensors()) {
    const View x = one.at(t.name), y = two.at(t.name);
    for (std::int64_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::fabs(double{x.ptr<float>()[i]} - double{y.ptr<float>()[i]}));
  }
  return worst;
}

inline void expect_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  EXPECT_TRUE(io::read_file(a) == io::read_file(b)) << a << " and " << b;
}

inline void expect_same_run(const std::filesystem::path& a, const std::filesystem::path& b,
                            const std::string& last_step) {
  expect_same_file(a / "model/model.safetensors", b / "model/model.safetensors");
  for (const char* name : {"model.safetensors", "optim-rank0.safetensors"})
    expect_same_file(a / "checkpoints" / last_step / name, b / "checkpoints" / last_step / name);
  EXPECT_EQ(timeless_metrics(a), timeless_metrics(b));
}

/// How often a tag occurs in the event files of a run.
inline int tensorboard_values(const std::filesystem::path& run, const std::string& tag) {
  int count = 0;
  for (const auto& file : io::list_folder(run / "tensorboard")) {
    const auto events = io::read_file(file);
    for (auto at = events.find(tag); at != std::string::npos; at = events.find(tag, at + 1)) ++count;
  }
  return count;
}

template <class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace hpcdl::train
