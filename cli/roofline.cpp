// hpcdl roofline: what this machine can do at most, and how much of that the kernels reach.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/run_config.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/train/run_table.h"
#include "tools/disturbance.h"
#include "tools/measure_roofs.h"
#include "tools/probe/parts.h"
#include "tools/roofline/picture.h"
#include "tools/roofline/report.h"

namespace hpcdl::cli {

namespace {

using lab::roofline::Report;
using lab::roofline::Row;

struct RooflineOptions {
  std::vector<std::string> ops, shapes;
  std::vector<std::string> configs;
  std::string csv, svg, html;
  std::string device = "cpu";
  bool json = false, no_measure = false;
  ThreadsOption threads;
};

class Meter {
 public:
  void operator()(const std::string& what, double done) { work_.show("roofline", done, {{what}}); }
  void clear() { work_.end(); }

 private:
  Work work_{console()};
};

std::vector<lab::Case> chosen(const RooflineOptions& o) {
  if (o.shapes.empty()) return lab::find_cases(o.ops);
  std::vector<lab::Case> list;
  for (const auto& shape : o.shapes)
    for (auto& c : lab::cases_at(o.ops, shape)) list.push_back(std::move(c));
  return list;
}

/// The built-in cases first; with a config and no ops named, only those.
std::vector<std::pair<lab::Case, const char*>> work(const RooflineOptions& o) {
  std::vector<std::pair<lab::Case, const char*>> list;
  const auto seed = lab::roofline::seed_cases();
  for (const auto& c : seed) list.emplace_back(c, "seed");
  if (!o.configs.empty() && o.ops.empty() && o.shapes.empty()) return list;
  for (auto& c : chosen(o)) {
    const bool known =
        std::any_of(seed.begin(), seed.end(), [&](const auto& s) { return case_label(s) == case_label(c); });
    if (!known) list.emplace_back(std::move(c), "case");
  }
  return list;
}

/// A case that seems faster than the speed of light is timed again, and so are the roofs: one disturbed sample is not
/// an error.
void measure_again(Report& report, const std::vector<std::pair<lab::Case, const char*>>& list,
                   const lab::roofline::Place& place, std::shared_ptr<Buffer>& arena) {
  if (report.faults() == 0) return;
  report.roofs = lab::roofs(place.stream.device(), place.stream.pool(), lab::Remember::best);
  for (std::size_t i = 0; i < report.rows.size(); ++i)
    if (report.rows[i].fault())
      report.rows[i] =
          lab::roofline::measure(list[i].first, list[i].second, place, report.roofs, {.seconds = 0.3}, arena);
  for (auto& r : report.rows) lab::roofline::relight(r, report.roofs);
  for (auto& r : report.step) lab::roofline::relight(r, report.roofs);
}

void add_step(Report& report, const RooflineOptions& o, Pool& pool, train::RunConfig& config, Meter& meter) {
  report.config = o.configs.back();
  config.train.device = o.device;
  report.step = lab::roofline::step_rows(config, pool, report.roofs, {}, !o.no_measure, std::ref(meter));
}

void write_files(const Report& report, const RooflineOptions& o) {
  if (!o.csv.empty()) io::write_file_atomic(o.csv, to_csv(report));
  if (!o.svg.empty()) io::write_file_atomic(o.svg, lab::roofline::to_svg(report));
  if (!o.html.empty()) io::write_file_atomic(o.html, lab::roofline::to_html(report));
}

int roofline(RooflineOptions& o, const Command& sub) {
  const auto overrides = sub.rest();
  if (o.configs.empty() && !overrides.empty()) refuse_keys("roofline", overrides.front(), sub);
  const auto list = work(o);
  std::optional<train::RunConfig> config;  // read before anything is measured, as files are tried
  if (!o.configs.empty()) {
    auto table = train::table_of(config.emplace());
    load(table, {o.configs.begin(), o.configs.end()}, overrides, sub);
  }
  for (const auto* file : {&o.csv, &o.svg, &o.html}) check_writable(*file);
  const auto start = std::chrono::steady_clock::now();
  const lab::DisturbanceWatch watch;
  Pool pool(o.threads.checked("roofline"));
  Meter meter;
  meter("the roofs of this machine", 0);
  Report report;
  report.machine = lab::this_machine();
  report.threads = pool.threads();
  report.date = lab::roofline::today();
  const lab::roofline::Place place(device_from_name(o.device), pool);
  const Device device = place.stream.device();
  report.device = o.device;
  if (device.is_cuda()) report.gpu = lab::describe_gpu(device.index).name;
  report.roofs = lab::roofs(device, pool, o.no_measure ? lab::Remember::measured : lab::Remember::best);
  std::shared_ptr<Buffer> arena;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [c, source] = list[i];
    meter(case_label(c), static_cast<double>(i) / static_cast<double>(list.size()));
    try {
      report.rows.push_back(o.no_measure ? lab::roofline::row_of(c, source, report.roofs)
                                         : lab::roofline::measure(c, source, place, report.roofs, {}, arena));
    } catch (const Error& e) {
      if (!device.is_cuda()) throw;
      say("{}: {}", case_label(c), e.what());  // a GPU may lack the code or the memory for one case
      report.rows.push_back(lab::roofline::row_of(c, source, report.roofs));
    }
  }
  if (config) add_step(report, o, pool, *config, meter);
  if (!o.no_measure) measure_again(report, list, place, arena);
  meter.clear();
  if (!o.no_measure && !device.is_cuda()) report.disturbance = watch.so_far();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  write_files(report, o);
  if (o.json) print_json(to_json(report));
  else print_text(to_text(report, isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR")));
  return exit_code::kDone;
}

}  // namespace

void add_roofline(const Command& program, Run& run) {
  add_verb<RooflineOptions>(
      program, run, "roofline",
      "Shows every op, or every record of a training step, under the measured roofs of this machine",
      [](const Command& sub, RooflineOptions& o) {
        sub.option("op", o.ops,
                   "Ops, e.g. softmax linear+bias_relu; \"linear\" means all its variants; default: every op");
        sub.option("--shape", o.shapes,
                   "Shape for the named ops, e.g. 4096x1024; repeatable; default: the built-in shapes")
            .one_each();
        sub.option(
               "-c,--config", o.configs,
               "TOML file of a training run, whose step is measured record by record; --section.key=value overrides")
            .one_each();
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        sub.flag("--json", o.json, "One JSON object on stdout: machine, roofs, rows");
        sub.option("--csv", o.csv, "Write all rows to this file");
        sub.option("--svg", o.svg, "Write the log-log picture to this file");
        sub.option("--html", o.html, "Write a self-contained page with the picture and the rows to this file");
        sub.flag("--no-measure", o.no_measure, "Print only costs, bounds and speed of light; no kernel runs");
        add_threads_option(sub, o.threads);
        sub.takes_rest();
      },
      roofline);
}

}  // namespace hpcdl::cli
