// hpcdl verify: checks kernels, ours or those of a library, against their contracts; --planted proves that it finds
// errors.

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/io/nearest.h"
#include "tests/planted/planted.h"
#include "tools/measure_roofs.h"
#include "tools/verify/verify.h"

namespace hpcdl::cli {

namespace {

using namespace lab::verify;

constexpr int kFaults = 1;  // exit code: a kernel is faulty

struct VerifyOptions {
  std::vector<std::string> targets;
  bool planted = false, json = false, contracts = false;
  std::uint64_t seed = 1;
  std::string only, device = "cpu";
  double timeout = 20;
  ThreadsOption threads;

  bool on_gpu() const { return device == "cuda"; }
};

int list_contracts(const VerifyOptions& o) {
  Json j = Json::array();
  std::string text;
  for (const auto& c : contracts()) {
    const auto join = [](const auto& names) { return fmt::format("{}", fmt::join(names, ", ")); };
    j.push_back({{"name", c.name}, {"formula", c.formula}, {"inputs", join(c.inputs)}, {"outputs", join(c.outputs)}});
    text += fmt::format("{}({}) -> {}\n    {}\n", c.name, join(c.inputs), join(c.outputs), c.formula);
  }
  if (o.json) print_json({{"contracts", j}});
  else print_text(text);
  return exit_code::kDone;
}

bool is_library(const std::string& target) {
  return target.find('/') != std::string::npos || target.find(".so") != std::string::npos;
}

/// Kernels of the targets; all of ours if there is no target.
std::vector<Subject> subjects_of(const VerifyOptions& o) {
  std::vector<Subject> own = o.on_gpu() ? own_gpu_kernels() : own_kernels(), list;
  if (o.targets.empty()) return own;
  for (const auto& target : o.targets) {
    const auto before = list.size();
    if (is_library(target)) {
      for (auto& s : library_kernels(target)) list.push_back(std::move(s));
      continue;
    }
    find_contract(target);
    std::copy_if(own.begin(), own.end(), std::back_inserter(list),
                 [&](const Subject& s) { return s.contract == target; });
    require(list.size() > before, "verify", "none of our kernels has the contract \"{}\" on {}", target, o.device);
  }
  return list;
}

Json to_json(const Verdict& v) {
  Json stages;
  for (int s = 0; s < kStages; ++s) {
    const auto& r = v.stages[static_cast<std::size_t>(s)];
    if (r.cases > 0)
      stages[std::string(stage_name(static_cast<Stage>(s)))] = {
          {"cases", r.cases}, {"declined", r.declined}, {"seconds", r.seconds}};
  }
  Json j = {{"contract", v.subject.contract}, {"kernel", v.subject.name}, {"ok", v.ok()}, {"cases", v.cases()},
            {"seconds", v.seconds},           {"stages", stages}};
  if (v.fault)
    j["fault"] = {{"stage", stage_name(v.fault->at.stage)},
                  {"what", v.fault->what},
                  {"case", to_string(v.fault->at, find_contract(v.subject.contract))},
                  {"seed", v.fault->at.seed},
                  {"alone", v.fault->alone}};
  return j;
}

/// What is wrong, where, and how to repeat it.
std::string explain(const Verdict& v, const std::string& target, const VerifyOptions& o) {
  const auto& f = *v.fault;
  const auto stage = stage_name(f.at.stage);
  std::string text = fmt::format("    {}: {}\n", stage, f.what);
  if (f.at.n_dims > 0)
    text += fmt::format("    at {}{}\n", to_string(f.at, find_contract(v.subject.contract)),
                        f.alone ? "" : "; it appears only after the earlier calls, not alone");
  return text + fmt::format("    again: hpcdl verify {}{} --only {} --seed {}\n", quoted(target),
                            o.on_gpu() ? " --device cuda" : "", stage, o.seed);
}

constexpr int kGpuProcesses = 8;  // each has a context of its own on it

lab::verify::Options run_options(const VerifyOptions& o, const std::vector<Subject>& subjects) {
  const bool gpu =
      std::any_of(subjects.begin(), subjects.end(), [](const Subject& s) { return s.device_kind == HPCDL_ON_CUDA; });
  lab::verify::Options r;
  r.seed = o.seed;
  if (!o.only.empty()) r.only = stage_from_name(o.only);
  r.patience = std::chrono::milliseconds(static_cast<int>(o.timeout * 1000));
  r.processes = o.threads.count > 0 ? o.threads.count : usable_cpus();
  if (gpu) r.gpu = gpu_roofs(), r.processes = std::min(r.processes, kGpuProcesses);
  return r;
}

/// Measured before any child starts, and leaves no thread running.
lab::Roofs current_roofs(const std::vector<Subject>& subjects, int threads) {
  if (std::none_of(subjects.begin(), subjects.end(), [](const Subject& s) { return s.device_kind == HPCDL_ON_CPU; }))
    return {};
  Pool pool(threads);
  return lab::roofs(pool);
}

int report(const VerifyOptions& o, const std::vector<Verdict>& verdicts) {
  std::int64_t cases = 0, declined = 0;
  std::size_t faults = 0;
  std::string text;
  Json kernels = Json::array();
  for (const auto& v : verdicts) {
    cases += v.cases();
    int no = 0;
    for (const auto& s : v.stages) no += s.declined;
    declined += no;
    faults += !v.ok();
    kernels.push_back(to_json(v));
    text += fmt::format("{:<24} {:<24} {:>5} cases  {:>5.2f} s  {}{}\n", v.subject.contract, v.subject.name, v.cases(),
                        v.seconds, v.ok() ? "ok" : "FAULT", v.ok() && no > 0 ? fmt::format(", {} declined", no) : "");
    if (v.fault) text += explain(v, o.targets.size() == 1 ? o.targets[0] : v.subject.contract, o);
  }
  if (o.json)
    print_json({{"seed", o.seed}, {"kernels", kernels}, {"cases", cases}, {"declined", declined}, {"faults", faults}});
  else
    print_text(text + (faults ? fmt::format("{} of {} kernels are faulty\n", faults, verdicts.size())
                              : fmt::format("{} kernel{}, {} cases: all passed\n", verdicts.size(),
                                            verdicts.size() == 1 ? "" : "s", cases)));
  return faults ? kFaults : exit_code::kDone;
}

void require_some(const std::vector<Subject>& subjects) {
  require(!subjects.empty(), "verify",
          "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
}

/// The planted kernels; ours are among the correct ones.
int verify_planted(const VerifyOptions& o) {
  std::vector<Subject> subjects;
  std::vector<const char*> faults;
  for (const auto& p : planted::corpus()) {
    if (p.kernel.device_kind != (o.on_gpu() ? HPCDL_ON_CUDA : HPCDL_ON_CPU)) continue;
    subjects.push_back(linked_kernel(p.kernel));
    faults.push_back(p.fault);
  }
  for (auto& s : o.on_gpu() ? own_gpu_kernels() : own_kernels())
    subjects.push_back(std::move(s)), faults.push_back(nullptr);
  require_some(subjects);
  auto options = run_options(o, subjects);
  options.patience = std::min(options.patience, std::chrono::milliseconds(5000));  // one of them hangs
  const auto verdicts = verify(subjects, current_roofs(subjects, o.threads.count), options);
  int bad = 0, caught = 0, alarms = 0;
  std::string text;
  Json kernels = Json::array();
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    const auto& v = verdicts[i];
    bad += faults[i] != nullptr;
    (faults[i] ? caught : alarms) += !v.ok();
    kernels.push_back(to_json(v));
    kernels.back()["planted"] = faults[i] ? Json(faults[i]) : Json();
    const auto stage = v.ok() ? "" : stage_name(v.fault->at.stage);
    text += fmt::format("{:<20} {:<24} {:<48} {}\n", v.subject.contract, v.subject.name, faults[i] ? faults[i] : "-",
                        v.ok() ? (faults[i] ? "NOT CAUGHT" : "passes")
                               : fmt::format("{}{}", faults[i] ? "caught: " : "FALSE ALARM: ", stage));
    if (v.fault)
      text +=
          fmt::format("{:>20} {}; {}\n", "", v.fault->what, to_string(v.fault->at, find_contract(v.subject.contract)));
  }
  const auto good = static_cast<int>(verdicts.size()) - bad;
  if (o.json)
    print_json({{"seed", o.seed},
                {"bad", bad},
                {"caught", caught},
                {"good", good},
                {"false_alarms", alarms},
                {"kernels", kernels}});
  else print_text(text + fmt::format("caught {}/{}, false alarms {}/{}\n", caught, bad, alarms, good));
  return caught == bad && alarms == 0 ? exit_code::kDone : kFaults;
}

int verify_verb(VerifyOptions& o) {
  if (o.contracts && (o.planted || !o.targets.empty()))
    fail_usage("verify", "--contracts lists all contracts; leave out {}", o.planted ? "--planted" : o.targets[0]);
  if (o.contracts) return list_contracts(o);
  o.threads.checked("verify");
  if (!o.only.empty()) stage_from_name(o.only);
  if (o.planted) {
    if (!o.targets.empty()) fail_usage("verify", "--planted has its own kernels: leave out {}", o.targets[0]);
    return verify_planted(o);
  }
  const auto subjects = subjects_of(o);
  require_some(subjects);
  const auto count = subjects.size();
  Work progress(console());
  const auto verdicts =
      verify(subjects, current_roofs(subjects, o.threads.count), run_options(o, subjects),
             [&](const Verdict& v, std::size_t done) {
               progress.show("verifying", static_cast<double>(done) / static_cast<double>(count),
                             {{fmt::format("{} of {} kernels", done, count), fmt::format("{}/{}", done, count)},
                              {fmt::format("last {} {}", v.subject.contract, v.subject.name)}});
             });
  progress.end();
  return report(o, verdicts);
}

}  // namespace

void add_verify(const Command& program, Run& run) {
  add_verb<VerifyOptions>(
      program, run, "verify",
      "Checks our kernels, or those of a library, against their contracts: shapes, stability, determinism, edges, "
      "speed",
      [](const Command& sub, VerifyOptions& o) {
        sub.option("targets", o.targets,
                   "Names of contracts, or shared libraries that use hpcdl/kernel_abi.h; default: all our kernels");
        sub.option(
               "--device", o.device,
               "Where our kernels or the planted ones run: cpu or cuda; a library itself says where its kernels run")
            .one_of({"cpu", "cuda"})
            .shows_default();
        sub.flag("--planted", o.planted,
                 "Verify the verifier: kernels that are broken on purpose must be caught, correct ones must pass");
        sub.flag("--contracts", o.contracts, "List all contracts");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.option("--seed", o.seed, "Seed of the values and of the random sizes").shows_default();
        sub.option("--only", o.only, "One stage: smoke, shapes, stability, determinism, edges, speed");
        sub.option("--timeout", o.timeout, "Seconds that one call of a kernel may take before it counts as hung")
            .range(0.01, 86400.0)
            .shows_default();
      },
      verify_verb);
}

}  // namespace hpcdl::cli
