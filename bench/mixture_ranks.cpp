// Training of a mixture on RANKS GPUs in bf16: every token goes through two of eight experts. With the line protocol of
// bench/peers/mixture_torch.py. One process for each GPU.
//   mixture_ranks RANKS dense|whole|divided [BATCH CONTEXT WIDTH LAYERS EXPERT_FFN STEPS]
// dense: an MLP with the work of two experts instead; whole: every GPU has all experts; divided: the GPUs divide them.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "bench/fork_ranks.h"
#include "bench/timed_steps.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/expert.h"

namespace {

using namespace hpcdl;

constexpr std::int64_t kVocab = 32000;

struct Bench {
  int ranks;
  std::string kind;
  std::int64_t batch, length, width, layers, ffn;
  int steps;
};

io::ModelConfig config_of(const Bench& b) {
  io::ModelConfig c{.family = io::Family::llama,
                    .layers = b.layers,
                    .heads = b.width / 64,
                    .width = b.width,
                    .context = b.length,
                    .vocab = kVocab,
                    .tied = false};
  if (b.kind == "dense") {
    c.ffn = 2 * b.ffn;
    return c;
  }
  c.family = io::Family::mixtral;
  c.experts = 8, c.chosen_experts = 2, c.expert_ffn = b.ffn, c.balance = 0.01;
  return c;
}

class Trainer {
 public:
  Trainer(const Bench& b, const comm::Group& world)
      : b_(b),
        world_(world),
        experts_(b.kind == "divided" && world.size() > 1 ? world.split(0, world.rank(), "ep") : comm::Group()),
        model_(models::LanguageModel::create(config_of(b), 1, true, {}, {},
                                             std::make_shared<const parallel::ExpertParallel>(experts_))),
        step_(model_, pool_, options(), Device::cuda(world.rank())),
        steps_(step_, world, b.batch * b.length, kVocab) {
    steps_.run(5);
  }

  nlohmann::json timed() { return steps_.timed(b_.steps); }

 private:
  train::StepOptions options() const {
    train::StepOptions o;
    o.batch = b_.batch, o.length = b_.length, o.forward.compute = DType::bf16;
    o.data = world_, o.experts = experts_, o.share_batch = b_.kind != "dense";
    o.reduce.buckets = {.cap = std::int64_t{200} << 20, .first = std::int64_t{80} << 20};
    return o;
  }

  const Bench& b_;
  comm::Group world_, experts_;
  Pool pool_{4};
  models::LanguageModel model_;
  train::TrainStep step_;
  bench::TimedSteps steps_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const std::string_view kind = argc > 2 ? argv[2] : "";
  if (kind != "dense" && kind != "whole" && kind != "divided")
    return std::fprintf(
               stderr,
               "usage: mixture_ranks RANKS dense|whole|divided [BATCH CONTEXT WIDTH LAYERS EXPERT_FFN STEPS]\n"),
           2;
  const Bench b{.ranks = std::atoi(argv[1]),
                .kind = std::string(kind),
                .batch = number(3, 16),
                .length = number(4, 1024),
                .width = number(5, 1024),
                .layers = number(6, 8),
                .ffn = number(7, 1792),
                .steps = number(8, 5)};
  return bench::fork_ranks(b.ranks, [&](const comm::Group& world) {
    Trainer t(b, world);
    bench::for_each_line(world, [&] { return t.timed(); });
  });
}
