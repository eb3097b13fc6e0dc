#include "cli/bench_steps.h"

#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/models/family.h"
#include "hpcdl/parallel/agree.h"
#include "tools/roofline/report.h"

namespace hpcdl::cli {

void bench_steps_on_rank(const BenchStepsOptions& o, io::Family family, const std::vector<lab::StepVariant>& variants,
                         const StepsReportForms& forms, const comm::Group& world, Device device) {
  if (world.rank() == 0) check_writable(o.json.empty() ? "" : o.json[0]);
  auto model = o.model;
  model.family = family;
  models::resolve(model);
  auto options = o.steps;
  if (o.bf16) options.compute = DType::bf16;
  options.device = device;
  Pool pool(o.threads.count > 0 ? o.threads.count : parallel::threads_per_rank(world));
  const auto report = lab::bench_steps(world, pool, model, variants, options);
  if (world.rank() > 0) return;
  auto json = forms.json(report);
  const auto m = lab::this_machine();
  json["machine"] = {{"cpu", m.cpu}, {"isa", m.isa}, {"threads", pool.threads()}, {"date", lab::roofline::today()}};
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  if (!o.json.empty() && !to_stdout) io::write_file_atomic(o.json[0], json.dump(1) + "\n");
  if (to_stdout) print_json(json);
  else print_text(forms.table(report));
}

}  // namespace hpcdl::cli
