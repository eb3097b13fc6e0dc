// hpcdl bench ddp: what exchanging gradients costs a step, by bucket size, on the ranks that mpirun has started or on
// threads.

#include "cli/bench_ddp.h"

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

struct BenchDdpOptions {
  io::ModelConfig model{.layers = 8, .heads = 6, .width = 384, .context = 256, .vocab = 1024};
  lab::StepsOptions ddp;
  std::vector<double> buckets{1, 5, 10, 25, 50, 100};
  int ranks = 0;
  ThreadsOption threads;
  std::string svg;
  std::vector<std::string> json;
};

void bench_rank(const BenchDdpOptions& o, const comm::Group& world) {
  auto model = o.model;
  model.tied = false;
  models::resolve(model);
  Pool pool(o.threads.count > 0 ? o.threads.count : parallel::threads_per_rank(world));
  const bool speaks = world.rank() == 0;
  if (speaks) check_writable(o.svg), check_writable(o.json.empty() ? "" : o.json[0]);
  Work progress(speaks ? console() : Console());
  const auto report = lab::bench_steps(world, pool, model, lab::ddp_variants(o.buckets), o.ddp,
                                       [&](const std::string& what) { progress.show("bench ddp", -1, {{what}}); });
  if (!speaks) return;
  progress.end();
  auto json = lab::ddp_json(report);
  const auto m = lab::this_machine();
  json["machine"] = {{"cpu", m.cpu}, {"isa", m.isa}, {"date", lab::roofline::today()}};
  if (!o.svg.empty())
    io::write_file_atomic(
        o.svg, lab::ddp_picture(
                   report, fmt::format("A training step on {} ranks, by how gradients are exchanged", report.ranks)));
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  if (!o.json.empty() && !to_stdout) io::write_file_atomic(o.json[0], json.dump(1) + "\n");
  if (to_stdout) print_json(json);
  else print_text(lab::ddp_table(report));
}

int bench_ddp(const BenchDdpOptions& o) {
  o.threads.checked("bench");
  for (const double mb : o.buckets)
    if (!(mb > 0))
      fail_usage("bench", "a bucket of {} MB: expected sizes above 0; each tensor separately is measured in any case",
                 mb);
  return on_bench_ranks("ddp", o.ranks, "cpu", [&](const comm::Group& world, Device) { bench_rank(o, world); });
}

}  // namespace

std::function<int()> add_bench_ddp(const Command& bench) {
  auto o = std::make_shared<BenchDdpOptions>();
  const Command sub = bench.subcommand("ddp",
                                       "Times data-parallel training steps on the ranks of mpirun, hpcdl launch and "
                                       "others: bucket sizes against waiting for each tensor separately");
  sub.option("--buckets", o->buckets, "Sizes in MB").separated_by(',').kind("MB,MB").shows_default();
  sub.option("--first-bucket", o->ddp.first_mb, "Size of the first bucket in MB").range(0.001, 1e6).shows_default();
  sub.option("--layers", o->model.layers, "Layers of the model").range(1, 1000).shows_default();
  sub.option("--width", o->model.width, "Width of the model").range(1, 1 << 16).shows_default();
  sub.option("--heads", o->model.heads, "Attention heads of the model").range(1, 1024).shows_default();
  sub.option("--context", o->model.context, "Tokens in a sequence").range(1, 1 << 20).shows_default();
  sub.option("--vocab", o->model.vocab, "Size of the vocabulary").range(2, 1 << 20).shows_default();
  sub.option("--batch", o->ddp.batch, "Sequences of each rank").range(1, 1 << 16).shows_default();
  sub.option("--rounds", o->ddp.rounds, "Measured steps of each variant").range(1, 10000).shows_default();
  sub.option("-n,--ranks", o->ranks,
             "Run this many ranks as threads of this process, instead of those that a launcher has started")
      .range(2, 64);
  add_threads_option(sub, o->threads,
                     "Threads of each rank; default: the processors of its host divided among its ranks");
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  sub.option("--svg", o->svg, "Draw the step times into this file");
  return [o] { return bench_ddp(*o); };
}

}  // namespace hpcdl::cli
