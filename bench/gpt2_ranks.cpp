// Our side of bench/gpu/ranks.py: GPT-2 124M, data parallel over GPUs, with the line protocol of
// bench/peers/gpt2_ddp.py. One process for each GPU.
//   gpt2_ranks RANKS BATCH CONTEXT f32|bf16 [STEPS] [BUCKET_MB[/FIRST_MB][:beside|:wait|:apart]]...
// With several kinds of buckets, each is measured separately, without lines on stdin, with time stamps of rank 0 around
// every exchange of its last step: how long they took, including waits for peers, and how long the step waited
// for them. apart: every GPU trains alone, nothing is exchanged.

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/fork_ranks.h"
#include "bench/timed_steps.h"
#include "hpcdl/models/language_model.h"

namespace {

using namespace hpcdl;

struct Kind {
  double bucket_mb = parallel::BucketOptions().cap / double(1 << 20);
  double first_mb = parallel::BucketOptions().first / double(1 << 20);
  bool overlap = parallel::ReduceOptions().overlap;
  bool apart = false;
};

struct Bench {
  int ranks;
  std::int64_t batch, length;
  DType compute;
  int steps;
  std::vector<Kind> kinds;
};

class Trainer {
 public:
  Trainer(const Bench& b, const comm::Group& world, models::LanguageModel& model, Pool& pool, const Kind& kind)
      : b_(b),
        trainer_(model, pool, options(b, world, kind), Device::cuda(world.rank())),
        steps_(trainer_, world, b.batch * b.length, 50257) {
    steps_.run(3);
  }

  /// The time of b.steps steps, starting when all ranks are ready.
  nlohmann::json timed() {
    auto j = steps_.timed(b_.steps);
    if (const auto* g = trainer_.ranks(); g && b_.kinds.size() > 1) {
      const auto& now = g->times();
      const double passes = static_cast<double>(now.passes - times_.passes);
      j["exchange_ms"] = (now.seconds - times_.seconds) * 1e3 / passes;
      j["waited_ms"] = (now.waited_seconds - times_.waited_seconds) * 1e3 / passes;
      times_ = now;
    }
    return j;
  }

 private:
  static train::StepOptions options(const Bench& b, const comm::Group& world, const Kind& kind) {
    train::StepOptions o;
    o.batch = b.batch, o.length = b.length, o.forward.compute = b.compute;
    if (!kind.apart) o.data = world;
    o.reduce.buckets.cap = static_cast<std::int64_t>(kind.bucket_mb * (1 << 20));
    o.reduce.buckets.first = static_cast<std::int64_t>(kind.first_mb * (1 << 20));
    o.reduce.overlap = kind.overlap;
    o.reduce.timed = b.kinds.size() > 1;
    return o;
  }

  const Bench& b_;
  train::TrainStep trainer_;
  bench::TimedSteps steps_;
  parallel::ExchangeTimes times_;
};

void run_rank(const Bench& b, const comm::Group& world) {
  io::ModelConfig config{.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocab = 50304};
  Pool pool(4);
  auto model = models::LanguageModel::create(config, 1, true);
  if (b.kinds.size() == 1) {
    Trainer t(b, world, model, pool, b.kinds[0]);
    return bench::for_each_line(world, [&] { return t.timed(); });
  }
  for (const auto& kind : b.kinds) {
    Trainer t(b, world, model, pool, kind);
    for (int i = 0; i < 4; ++i) {
      auto j = t.timed();
      j["bucket_mb"] = kind.bucket_mb, j["first_mb"] = kind.first_mb, j["overlap"] = kind.overlap,
      j["apart"] = kind.apart;
      if (world.rank() == 0) std::cout << j.dump() << std::endl;
    }
  }
}

/// "25", "100:beside", "400/300:beside", "0:wait"
Kind kind_of(std::string text) {
  Kind k;
  if (const auto colon = text.find(':'); colon != text.npos) {
    k.overlap = text.substr(colon) == ":beside", k.apart = text.substr(colon) == ":apart";
    text.resize(colon);
  }
  if (const auto slash = text.find('/'); slash != text.npos) {
    k.first_mb = std::stod(text.substr(slash + 1));
    text.resize(slash);
  }
  k.bucket_mb = std::stod(text);
  return k;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5)
    return std::fprintf(stderr,
                        "usage: gpt2_ranks RANKS BATCH CONTEXT f32|bf16 [STEPS] "
                        "[BUCKET_MB[/FIRST_MB][:beside|:wait|:apart]]...\n"),
           2;
  Bench b{.ranks = std::atoi(argv[1]),
          .batch = std::atoi(argv[2]),
          .length = std::atoi(argv[3]),
          .compute = std::string_view(argv[4]) == "bf16" ? DType::bf16 : DType::f32,
          .steps = argc > 5 ? std::atoi(argv[5]) : 5,
          .kinds = {}};
  for (int i = 6; i < argc; ++i) b.kinds.push_back(kind_of(argv[i]));
  if (b.kinds.empty()) b.kinds.emplace_back();
  return bench::fork_ranks(b.ranks, [&](const comm::Group& world) { run_rank(b, world); });
}
