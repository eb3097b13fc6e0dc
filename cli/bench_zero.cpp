// hpcdl bench zero: what data-parallel ranks gain and pay if they divide the state of a training, by stage.

#include "cli/bench_zero.h"

#include <memory>

#include "cli/bench_ranks.h"
#include "cli/bench_steps.h"
#include "cli/verb.h"

namespace hpcdl::cli {
namespace {

struct BenchZeroOptions : BenchStepsOptions {
  std::vector<int> stages{0, 1, 2, 3};
  bool wires = false;
};

}  // namespace

std::function<int()> add_bench_zero(const Command& bench) {
  auto o = std::make_shared<BenchZeroOptions>();
  const Command sub = bench.subcommand("zero",
                                       "Times data-parallel training steps on the ranks of mpirun, hpcdl launch and "
                                       "others, by what the ranks divide among themselves: time, bytes sent, memory");
  sub.option("--stages", o->stages, "Values of parallel.zero; the first is the one that others are compared with")
      .separated_by(',')
      .kind("N,N")
      .shows_default();
  sub.flag(
      "--wires", o->wires,
      "Instead of stages: stage 3 with 16-bit wires, with fewer bytes, and with shares of hosts. CPUs; implies --bf16");
  sub.option("--layers", o->model.layers, "Layers of the Llama").range(1, 1000).shows_default();
  sub.option("--width", o->model.width, "Width of the model").range(1, 1 << 16).shows_default();
  sub.option("--heads", o->model.heads, "Attention heads of the model").range(1, 1024).shows_default();
  sub.option("--context", o->model.context, "Tokens in a sequence").range(1, 1 << 20).shows_default();
  sub.option("--vocab", o->model.vocab, "Size of the vocabulary").range(2, 1 << 20).shows_default();
  sub.flag("--bf16", o->bf16, "Activations of 16 bits");
  sub.option("--batch", o->steps.batch, "Sequences of each rank").range(1, 1 << 16).shows_default();
  sub.option("--rounds", o->steps.rounds, "Measured steps of each stage").range(1, 10000).shows_default();
  sub.option("-n,--ranks", o->ranks,
             "Run this many ranks as threads of this process, instead of those that a launcher has started")
      .range(2, 64);
  add_threads_option(sub, o->threads,
                     "Threads of each rank; default: the processors of its host divided among its ranks");
  sub.option("--device", o->device, "cpu, or cuda: a GPU for each rank").shows_default();
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] {
    o->threads.checked("bench");
    for (const int stage : o->stages)
      if (stage < 0 || stage > 3) fail_usage("bench", "--stages: expected stages from 0 to 3, got {}", stage);
    if (o->stages.empty()) fail_usage("bench", "--stages: name at least one");
    if (o->wires && o->device != "cpu") fail_usage("bench", "--wires is for CPUs: leave out --device");
    if (o->wires) o->bf16 = true;
    return on_bench_ranks("zero", o->ranks, o->device, [&](const comm::Group& world, Device device) {
      bench_steps_on_rank(*o, io::Family::llama, o->wires ? lab::wire_variants() : lab::zero_variants(o->stages),
                          {lab::zero_json, lab::zero_table}, world, device);
    });
  };
}

}  // namespace hpcdl::cli
