// hpcdl bench zero: what data-parallel ranks gain and pay if they divide the state of a training, by stage.

#include "cli/bench_zero.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_ranks.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/models/family.h"
#include "hpcdl/parallel/agree.h"
#include "tools/ranks/steps.h"
#include "tools/roofline/report.h"

namespace hpcdl::cli {
namespace {

struct BenchZeroOptions {
  io::ModelConfig model{.layers = 4, .heads = 8, .width = 512, .context = 256, .vocab = 4096};
  lab::StepsOptions steps;
  std::vector<int> stages{0, 1, 2};
  int ranks = 0;
  ThreadsOption threads;
  bool bf16 = false;
  std::string device = "cpu";
  std::vector<std::string> json;
};

void bench_rank(const BenchZeroOptions& o, const comm::Group& world, Device device) {
  if (world.rank() == 0) check_writable(o.json.empty() ? "" : o.json[0]);
  auto model = o.model;
  model.family = io::Family::llama;
  models::resolve(model);
  auto options = o.steps;
  if (o.bf16) options.compute = DType::bf16;
  options.device = device;
  Pool pool(o.threads.count > 0 ? o.threads.count : parallel::threads_per_rank(world));
  const auto report = lab::bench_steps(world, pool, model, lab::zero_variants(o.stages), options);
  if (world.rank() > 0) return;
  auto json = lab::zero_json(report);
  const auto m = lab::this_machine();
  json["machine"] = {{"cpu", m.cpu}, {"isa", m.isa}, {"threads", pool.threads()}, {"date", lab::roofline::today()}};
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  if (!o.json.empty() && !to_stdout) io::write_file_atomic(o.json[0], json.dump(1) + "\n");
  if (to_stdout) print_json(json);
  else print_text(lab::zero_table(report));
}

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
      if (stage < 0 || stage > 2) fail_usage("bench", "--stages: expected stages from 0 to 2, got {}", stage);
    if (o->stages.empty()) fail_usage("bench", "--stages: name at least one");
    return on_bench_ranks("zero", o->ranks, o->device,
                          [&](const comm::Group& world, Device device) { bench_rank(*o, world, device); });
  };
}

}  // namespace hpcdl::cli
