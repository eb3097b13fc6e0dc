#include "tools/compose/compose.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab {
namespace {

namespace fs = std::filesystem;

/// In f32 sums of another order differ; in fewer bits so do products of other shapes.
double allowed_for(const train::TrainConfig& t) {
  // A moment that lies between two codes may become either: an update then differs by a part of the learning rate.
  constexpr double kCoded = 1e-4;
  switch (t.dtype) {
    case Compute::f32: return t.moments == Moments::f32 ? 1e-5 : kCoded;
    case Compute::bf16: return 2e-3;
    default: return 2e-2;
  }
}

/// A few thousand words, always the same.
std::string text_to_learn() {
  static constexpr const char* kWords[] = {"a", "ship", "leaves", "the", "quiet", "port", "at", "dawn", "and", "no"};
  std::string text;
  std::uint32_t x = 1;
  for (int i = 0; i < 4000; ++i) {
    x = x * 1664525u + 1013904223u;
    text += kWords[(x >> 16) % std::size(kWords)];
    text += (x >> 28) == 0 ? ".\n\n" : " ";
  }
  return text;
}

/// f(world) of every rank, each a thread; throws the first error.
void on_threads(int ranks, const std::function<void(const comm::Group&)>& f) {
  auto transports = comm::thread_transports(ranks);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (auto& t : transports)
    threads.emplace_back([&f, &first, &mutex, transport = std::move(t)]() mutable {
      comm::Group world;
      try {
        world = comm::make_world(std::move(transport));
        f(world);
        world.close();
      } catch (const std::exception& e) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.abandon(e.what());
      }
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

std::vector<double> numbers(const fs::path& run, const char* key) {
  std::istringstream in(io::read_file(run / "metrics.jsonl"));
  std::vector<double> list;
  for (std::string line; std::getline(in, line);)
    if (const auto j = io::parse_json(line, "metrics.jsonl"); j.contains(key)) list.push_back(j.at(key).get<double>());
  return list;
}

void note(RunDifference& worst, double difference, const std::string& where) {
  if (std::isfinite(worst.value) && !(difference <= worst.value)) worst = {difference, where};
}

RunDifference difference_of(const fs::path& got, const fs::path& want) {
  RunDifference worst;
  for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
    const auto g = numbers(got, key), w = numbers(want, key);
    require(g.size() == w.size() && (!w.empty() || std::string_view(key) == "eval_loss"), "compose",
            "expected {} numbers \"{}\", got {}", w.size(), key, g.size());
    for (std::size_t i = 0; i < w.size(); ++i) note(worst, std::fabs(g[i] - w[i]) / std::fabs(w[i]), key);
  }
  const auto a = io::TensorFolder::open(got / "model"), b = io::TensorFolder::open(want / "model");
  for (const auto& t : b.tensors()) {
    const View x = a.at(t.name), y = b.at(t.name);
    require(x.spec() == y.spec(), "compose", "tensors {} have different shapes", t.name);
    double largest = 0;
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const auto d = std::fabs(static_cast<double>(x.ptr<float>()[i]) - static_cast<double>(y.ptr<float>()[i]));
      if (!(d <= largest)) largest = d;
    }
    note(worst, largest, t.name);
  }
  return worst;
}

void place_files(train::RunConfig& c, const fs::path& folder, const fs::path& output) {
  c.data.text = {(folder / "text.txt").string()}, c.data.cache = folder / "cache", c.data.vocab_size = 270;
  c.checkpoint.keep = 0, c.output = output;
}

std::string toml_of(train::RunConfig& c) { return train::table_of(c).to_toml(); }

}  // namespace

Composer::Composer(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
  io::write_file_atomic(folder_ / "text.txt", text_to_learn());
}

fs::path Composer::run_on(int ranks, const std::function<void(train::RunConfig&)>& configure) {
  const auto output = folder_ / fmt::format("run{}", ++runs_);
  on_threads(ranks, [&](const comm::Group& world) {
    train::RunConfig c;
    configure(c);
    place_files(c, folder_, output);
    train::Hooks hooks;
    hooks.world = world;
    train::run(c, hooks);
  });
  return output;
}

const fs::path& Composer::reference(const SettingPair& pair) {
  train::RunConfig c;
  configure_alone(c, pair);
  auto& run = references_[toml_of(c)];
  if (run.empty()) run = run_on(1, [&](train::RunConfig& one) { configure_alone(one, pair); });
  return run;
}

Composed Composer::run(const SettingPair& pair) {
  train::RunConfig c;
  configure(c, pair);
  Composed result{.name = pair.name(), .ranks = ranks_of(pair), .why = {}, .difference = {}, .allowed = {}};
  try {
    const auto got = run_on(result.ranks, [&](train::RunConfig& one) { configure(one, pair); });
    result.allowed = allowed_for(c.train);
    result.difference = difference_of(got, reference(pair));
    fs::remove_all(got);
    if (!(result.difference.value <= result.allowed)) result.outcome = Composed::Outcome::differs;
  } catch (const UsageError& e) {
    result.outcome = Composed::Outcome::refused, result.why = e.what();
  }
  return result;
}

std::string_view outcome_name(Composed::Outcome o) {
  constexpr std::string_view names[] = {"matched", "refused", "differs"};
  return names[static_cast<int>(o)];
}

nlohmann::json to_json(const Composed& one) {
  nlohmann::json j{{"settings", one.name}, {"ranks", one.ranks}, {"outcome", outcome_name(one.outcome)}};
  if (one.outcome == Composed::Outcome::refused) return j["why"] = one.why, j;
  j.update({{"difference", one.difference.value}, {"of", one.difference.where}, {"allowed", one.allowed}});
  return j;
}

std::string to_text(const Composed& one) {
  const auto head = fmt::format("{:8} {:2} ranks  {}", outcome_name(one.outcome), one.ranks, one.name);
  if (one.outcome == Composed::Outcome::refused) return fmt::format("{}: {}", head, one.why);
  if (one.difference.value == 0) return head + ": the same bits";
  return fmt::format("{}: {:.1e} of {}, allowed {:.0e}", head, one.difference.value, one.difference.where, one.allowed);
}

}  // namespace hpcdl::lab
