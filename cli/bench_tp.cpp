// hpcdl bench tp: what sharing layers out costs, by scheme: bytes between ranks, counted and as declared, time and
// memory.

#include "cli/bench_tp.h"

#include <memory>

#include "cli/bench_ranks.h"
#include "cli/bench_steps.h"
#include "cli/verb.h"

namespace hpcdl::cli {
namespace {

struct BenchTpOptions : BenchStepsOptions {
  bool llama = false;
};

}  // namespace

std::function<int()> add_bench_tp(const Command& bench) {
  auto o = std::make_shared<BenchTpOptions>();
  const Command sub = bench.subcommand("tp",
                                       "Times tensor-parallel training steps on the ranks of mpirun, hpcdl launch and "
                                       "others, by scheme: bytes sent next to the formulas, time, memory");
  sub.option("--layers", o->model.layers, "Layers of the model").range(1, 1000).shows_default();
  sub.option("--width", o->model.width, "Width of the model").range(1, 1 << 16).shows_default();
  sub.option("--heads", o->model.heads, "Attention heads of the model").range(1, 1024).shows_default();
  sub.option("--context", o->model.context, "Tokens in a sequence").range(1, 1 << 20).shows_default();
  sub.option("--vocab", o->model.vocab, "Size of the vocabulary").range(2, 1 << 20).shows_default();
  sub.flag("--llama", o->llama, "A Llama instead of a GPT-2");
  sub.flag("--bf16", o->bf16, "Activations of 16 bits");
  sub.option("--batch", o->steps.batch, "Sequences of a step").range(1, 1 << 16).shows_default();
  sub.option("--rounds", o->steps.rounds, "Measured steps of each scheme").range(1, 10000).shows_default();
  sub.option("-n,--ranks", o->ranks,
             "Run this many ranks as threads of this process, instead of those that a launcher has started")
      .range(2, 64);
  add_threads_option(sub, o->threads,
                     "Threads of each rank; default: the processors of its host divided among its ranks");
  sub.option("--device", o->device, "cpu, or cuda: a GPU for each rank").shows_default();
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] {
    o->threads.checked("bench");
    return on_bench_ranks("tp", o->ranks, o->device, [&](const comm::Group& world, Device device) {
      bench_steps_on_rank(*o, o->llama ? io::Family::llama : io::Family::gpt2, lab::tensor_variants(),
                          {lab::tensor_json, lab::tensor_table}, world, device);
    });
  };
}

}  // namespace hpcdl::cli
