// hpcdl bench tp: what sharing layers out costs, by scheme: bytes between ranks, counted and as declared, time and
// memory.

#include "cli/bench_tp.h"

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

struct BenchTpOptions {
  io::ModelConfig model{.layers = 4, .heads = 8, .width = 512, .context = 256, .vocab = 4096};
  lab::StepsOptions tensor;
  int ranks = 0;
  ThreadsOption threads;
  bool llama = false, bf16 = false;
  std::string device = "cpu";
  std::vector<std::string> json;
};

void bench_rank(const BenchTpOptions& o, const comm::Group& world, Device device) {
  if (world.rank() == 0) check_writable(o.json.empty() ? "" : o.json[0]);
  auto model = o.model;
  model.family = o.llama ? io::Family::llama : io::Family::gpt2;
  models::resolve(model);
  auto options = o.tensor;
  if (o.bf16) options.compute = DType::bf16;
  options.device = device;
  Pool pool(o.threads.count > 0 ? o.threads.count : parallel::threads_per_rank(world));
  const auto report = lab::bench_steps(world, pool, model, lab::tensor_variants(), options);
  if (world.rank() > 0) return;
  auto json = lab::tensor_json(report);
  const auto m = lab::this_machine();
  json["machine"] = {{"cpu", m.cpu}, {"isa", m.isa}, {"threads", pool.threads()}, {"date", lab::roofline::today()}};
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  if (!o.json.empty() && !to_stdout) io::write_file_atomic(o.json[0], json.dump(1) + "\n");
  if (to_stdout) print_json(json);
  else print_text(lab::tensor_table(report));
}

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
  sub.option("--batch", o->tensor.batch, "Sequences of a step").range(1, 1 << 16).shows_default();
  sub.option("--rounds", o->tensor.rounds, "Measured steps of each scheme").range(1, 10000).shows_default();
  sub.option("-n,--ranks", o->ranks,
             "Run this many ranks as threads of this process, instead of those that a launcher has started")
      .range(2, 64);
  add_threads_option(sub, o->threads,
                     "Threads of each rank; default: the processors of its host divided among its ranks");
  sub.option("--device", o->device, "cpu, or cuda: a GPU for each rank").shows_default();
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] {
    o->threads.checked("bench");
    return on_bench_ranks("tp", o->ranks, o->device,
                          [&](const comm::Group& world, Device device) { bench_rank(*o, world, device); });
  };
}

}  // namespace hpcdl::cli
