#include "tools/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/machine/remembered.h"
#include "hpcdl/simd/isa.h"
#include "tools/measure_roofs.h"
#include "tools/probe/parts.h"
#include "tools/probe/sweeps.h"
#include "tools/verify/gpu_side.h"
#include "tools/verify/isolate.h"

namespace hpcdl::lab::verify {
namespace {

/// How much larger the timed case is on a GPU, where a launch alone takes longer than a few MiB.
constexpr std::int64_t kGpuTimes = 32;

/// The report of a child; in plain memory, so that it survives a crash.
struct Told {
  std::uint64_t beat;
  Case now;
  StageResult stages[kStages];
  bool faulty, alone;
  char what[600];

  void fault(const std::string& text) {
    faulty = true;
    std::memset(what, 0, sizeof what);
    std::strncpy(what, text.c_str(), sizeof what - 1);
  }
};

Roofs roofs_again() {
  Pool pool(1);
  return lab::roofs(Device::cuda(0), pool, Remember::best);
}

/// The most that a kernel with a working set of `bytes` can reach on this CPU: rates of its arithmetic, and the
/// bandwidth of the cache or memory that holds it, as `cache_read`. All threads together are measured too slow if
/// one of them waits for a core, so each figure is at least that of one thread times their number. Takes a few ms,
/// so that it can be repeated next to the kernel until both were measured in a quiet moment.
Roofs light_within(double bytes) {
  constexpr double kSample = 0.3e-3;
  constexpr int kRounds = 4;
  constexpr double kLeast = 16384;  // of a sweep, each thread
  Pool all, one(1);
  const int threads = all.threads();
  const double each = std::max(bytes / threads, kLeast);
  SweepMemory memory(all, static_cast<std::int64_t>(each) * threads);
  std::vector<Bandwidth> ways;
  std::vector<Peak> peaks;
  for (const int n : {1, threads}) {
    for (const auto way : {cpu::Sweep::read, cpu::Sweep::copy}) ways.push_back({"working set", way, n, each});
    list_peaks(simd::active_isa(), {"f32", "bf16", "i8"}, n, peaks);
    if (threads == 1) break;
  }
  Rounds rounds;
  add_sweeps(rounds, ways, {&one, &all}, memory, kSample, false);
  add_peaks(rounds, peaks, {&one, &all}, kSample);
  rounds.run(kRounds, kRounds, 0);

  Roofs r;
  const auto raise = [&](double& roof, const Figure& f, int n) { roof = std::max(roof, f.max * threads / n); };
  for (const auto& w : ways) raise(r.cache_read, w.rate, w.threads);
  for (const auto& p : peaks) raise(p.dtype == "f32" ? r.f32 : p.dtype == "bf16" ? r.bf16 : r.i8, p.rate, p.threads);
  return with_parts(r, simd::isa_name(simd::active_isa()));
}

/// Reduces the sizes of a failing case while it still fails; `attempt` returns why a case fails, "" if it does
/// not.
void shrink(const Contract& contract, Fault& f, const std::function<std::string(const Case&)>& attempt) {
  int budget = 80;
  const auto fails = [&](const Case& c) {
    if (--budget < 0) return false;
    std::string what = attempt(c);
    if (what.empty()) return false;
    f.at = c, f.what = std::move(what);
    return true;
  };
  if (!fails(f.at)) {
    f.alone = false;
    return;
  }
  for (bool smaller = true; smaller && budget > 0;) {
    smaller = false;
    for (int d = 0; d < f.at.n_dims; ++d) {
      // Bisects between a size that passes (or 0) and one that fails, as if all smaller ones passed.
      auto passes = std::min(f.at.dims[d], contract.dims[static_cast<std::size_t>(d)].least) - 1;
      for (auto to = passes + 1; to < f.at.dims[d] && budget > 0; to = passes + (f.at.dims[d] - passes) / 2) {
        Case c = f.at;
        c.dims[d] = to;
        if (fails(c)) smaller = true;
        else passes = to;
        if (f.at.dims[d] - passes <= 1) break;
      }
    }
  }
}

/// A case whose sizes may be made smaller.
bool has_sizes(const Fault& f) {
  return f.at.check != Check::time && f.at.n_dims > 0 && !f.what.starts_with("declined");
}

/// In the child: its parent waits during work outside of the kernel.
Alive alive(Told& told) {
  return [&told](bool own_work) {
    if (own_work) told.beat |= Child::kPatient;
    else told.beat &= ~Child::kPatient, ++told.beat;
  };
}

/// In the child: a new process for each smaller case would take half a second to reach the GPU.
void fault_on_gpu(Told& told, const hpcdl_kernel& kernel, const Contract& contract, const std::string& what) {
  Fault f{told.now, what, true};
  told.fault(what), told.alone = true;
  if (!has_sizes(f) || what.starts_with(GpuSide::kBroken)) return;
  shrink(contract, f, [&](const Case& c) {
    ++told.beat;
    return run_case(kernel, contract, c, {}, alive(told)).fault;
  });
  if (f.what.starts_with(GpuSide::kBroken)) return;
  told.now = f.at, told.alone = f.alone;
  told.fault(f.what);
}

/// In the child.
void run_stages(Told& told, const Subject& subject, const Roofs& roofs, const Options& o) {
  const auto& kernel = subject.load();
  const auto& contract = find_contract(subject.contract);
  const bool on_gpu = subject.device_kind == HPCDL_ON_CUDA;
  const auto ceiling = [&](const Problem& p, bool again) {
    if (!again) return least_seconds(contract, p, on_gpu ? o.gpu : roofs);
    alive(told)(true);
    const Roofs now =
        on_gpu ? roofs_again() : light_within(0.5 * contract.cost(p).bytes());  // what is updated in place counts twice
    alive(told)(false);
    return least_seconds(contract, p, now);
  };
  for (int s = 0; s < kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    if (o.only && *o.only != stage) continue;
    auto& result = told.stages[s];
    const auto start = Clock::now();
    for (Case c : cases_of(stage, contract, subject.dtypes, subject.flags, o.seed)) {
      if (on_gpu && stage == Stage::speed) c.dims[0] *= kGpuTimes;
      told.now = c;
      const auto outcome = run_case(kernel, contract, c, ceiling, alive(told));
      ++told.beat;
      ++result.cases;
      result.declined += outcome.declined;
      if (!outcome.fault.empty())
        return on_gpu ? fault_on_gpu(told, kernel, contract, outcome.fault) : told.fault(outcome.fault);
    }
    result.seconds = seconds_since(start);
  }
  int taken = 0;
  for (const auto& s : told.stages) taken += s.cases - s.declined;
  if (taken == 0) told.fault("declined every case: nothing was verified");
}

/// Why a case fails in a separate process; empty if it does not.
std::string probe(const Subject& subject, const Case& c, const Options& o) {
  const SharedMemory memory(sizeof(Told));
  Told& told = *memory.as<Told>();
  Child child(
      [&] {
        const auto outcome = run_case(subject.load(), find_contract(subject.contract), c, {}, alive(told));
        if (!outcome.fault.empty()) told.fault(outcome.fault);
      },
      &told.beat, o.patience);
  child.wait();
  return child.failure().empty() ? (told.faulty ? told.what : "") : child.failure();
}

struct Running {
  std::size_t index;
  SharedMemory memory{sizeof(Told)};
  Clock::time_point start = Clock::now();
  std::unique_ptr<Child> child;
};

Verdict conclude(const Running& r, const Subject& subject, const Options& o) {
  const Told& told = *r.memory.as<Told>();
  Verdict v;
  v.subject = subject;
  std::copy(std::begin(told.stages), std::end(told.stages), v.stages.begin());
  const std::string& failure = r.child->failure();
  if (!failure.empty()) v.fault = Fault{told.now, failure, true};
  else if (told.faulty) v.fault = Fault{told.now, told.what, subject.device_kind == HPCDL_ON_CPU || told.alone};
  if (v.fault && has_sizes(*v.fault) && !r.child->hung() && subject.device_kind == HPCDL_ON_CPU)
    shrink(find_contract(subject.contract), *v.fault, [&](const Case& c) { return probe(subject, c, o); });
  v.seconds = seconds_since(r.start);
  return v;
}

/// Roofs as text, from a child.
struct RoofsText {
  std::uint64_t beat;
  char json[4096], error[400];
};

}  // namespace

Roofs gpu_roofs() {
  const SharedMemory memory(sizeof(RoofsText));
  auto& m = *memory.as<RoofsText>();
  Child child(
      [&] {
        try {
          Pool pool(1);
          std::strncpy(m.json, to_json(lab::roofs(Device::cuda(0), pool)).dump().c_str(), sizeof m.json - 1);
        } catch (const std::exception& e) {
          std::strncpy(m.error, e.what(), sizeof m.error - 1);
        }
      },
      &m.beat, std::chrono::seconds(60));
  child.wait();
  if (m.error[0]) throw Error(m.error);
  require(child.failure().empty(), "verify", "measuring the GPU {}", child.failure());
  return roofs_from(nlohmann::ordered_json::parse(m.json));
}

int Verdict::cases() const {
  int n = 0;
  for (const auto& s : stages) n += s.cases;
  return n;
}

double least_seconds(const Contract& contract, const Problem& problem, const Roofs& roofs) {
  double peak = roofs.f32, bandwidth = std::max(roofs.cache_read, roofs.memory());
  for (const auto& i : problem.in) {
    if (i.spec.dtype == DType::bf16 || i.spec.dtype == DType::f16) peak = std::max(peak, roofs.bf16);
    if (i.spec.dtype == DType::u8 || is_f8_dtype(i.spec.dtype)) peak = std::max(peak, roofs.i8);
  }
  for (const auto& c : roofs.caches)
    if (c.bytes >= 0.5 * contract.cost(problem).bytes()) bandwidth = std::max({bandwidth, c.read, c.copy});
  const Cost cost = contract.cost(problem);
  return std::max(cost.operations / peak, cost.bytes() / bandwidth);
}

std::vector<Verdict> verify(const std::vector<Subject>& subjects, const Roofs& roofs, const Options& o,
                            const std::function<void(const Verdict&, std::size_t)>& done) {
  for (const auto& s : subjects) find_contract(s.contract);
  std::vector<Verdict> verdicts(subjects.size());
  std::vector<Running> running;
  std::size_t next = 0, finished = 0;
  while (finished < subjects.size()) {
    while (next < subjects.size() && running.size() < static_cast<std::size_t>(std::max(1, o.processes))) {
      Running& r = running.emplace_back(Running{.index = next++, .child = nullptr});
      Told* told = r.memory.as<Told>();
      r.child = std::make_unique<Child>([&, told] { run_stages(*told, subjects[running.back().index], roofs, o); },
                                        &told->beat, o.patience);
    }
    for (std::size_t i = 0; i < running.size();) {
      if (!running[i].child->poll()) {
        ++i;
        continue;
      }
      const auto index = running[i].index;
      verdicts[index] = conclude(running[i], subjects[index], o);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      ++finished;
      if (done) done(verdicts[index], finished);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return verdicts;
}

}  // namespace hpcdl::lab::verify
