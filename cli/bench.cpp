// hpcdl bench: ops at their shapes, timed by the protocol of the lab, next to other libraries and against the speed of
// light.

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/bench_comm.h"
#include "cli/bench_compose.h"
#include "cli/bench_ddp.h"
#include "cli/bench_decode.h"
#include "cli/bench_python.h"
#include "cli/bench_serve.h"
#include "cli/bench_tp.h"
#include "cli/bench_zero.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/machine/machine.h"
#include "tools/cases.h"
#include "tools/compare/case_bench.h"
#include "tools/disturbance.h"
#include "tools/measure_roofs.h"
#include "tools/probe/parts.h"
#include "tools/roofline/report.h"

namespace hpcdl::cli {

namespace {

namespace compare = lab::compare;

struct BenchOptions {
  std::vector<std::string> ops, vs, json;
  std::string vs_words, shape, dtype, device = "cpu";
  int rounds = 0, repeats = 20, sweep = 0;
  std::uint64_t seed = 1;
  double seconds = 4;
  bool to_stdout = false, cold = false, warm = false, aa = false, list = false, forward = false;
  TuneOption tune;
  ThreadsOption threads;
  std::function<int()> comm, compose, ddp, decode, serve, tp, zero;
};

/// `--json softmax`: a word that names an op is an op, not a file.
void settle_words(BenchOptions& o) {
  o.to_stdout = !o.json.empty() && o.json[0].empty();
  if (o.json.empty() || o.to_stdout) return;
  for (const auto& c : lab::cases())
    if (o.json[0] == c.op || o.json[0] == lab::base_op(c))
      return o.ops.push_back(o.json[0]), o.to_stdout = true, void();
}

std::vector<lab::Case> swept_cases(const BenchOptions& o) {
  if (!o.shape.empty()) fail_usage("bench", "--sweep draws the shapes: leave --shape out");
  return lab::swept_cases(o.ops, {.shapes = o.sweep,
                                  .seed = o.seed,
                                  .large = device_from_name(o.device).is_cuda(),
                                  .forward = o.forward,
                                  .dtype = o.dtype.empty()    ? DType::none
                                           : o.dtype == "f32" ? DType::f32
                                                              : DType::bf16});
}

std::vector<lab::Case> wanted_cases(const BenchOptions& o) {
  if (o.sweep > 0) return swept_cases(o);
  auto cases = o.shape.empty() ? lab::find_cases(o.ops) : lab::cases_at(o.ops, o.shape);
  const bool on_gpu = device_from_name(o.device).is_cuda();
  std::erase_if(cases, [&](const lab::Case& c) {
    return (on_gpu && c.cpu_only) || (!o.dtype.empty() && lab::dtype_word(c.dtype) != o.dtype) ||
           (o.forward && c.backward);
  });
  if (cases.empty())
    fail_usage("bench", "these ops have no case with {}{}{}: see hpcdl bench --list", o.dtype,
               o.forward ? " forward" : "", on_gpu ? " on a GPU" : "");
  return cases;
}

std::vector<std::string> parse_peers(const std::string& words) {
  static const std::vector<std::string> known{"torch", "triton", "onednn", "openblas", "cublaslt", "cudnn"};
  std::vector<std::string> names;
  std::istringstream in(words);
  for (std::string name; std::getline(in, name, ',');) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail_usage("bench", "no peer \"{}\"{}: expected one of {}", name, io::did_you_mean(name, known),
                 fmt::join(known, ", "));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

compare::Options protocol_of(const BenchOptions& o) {
  return {.cache = o.cold ? compare::Cache::flushed : compare::Cache::warm,
          .rounds = o.rounds,
          .limit = o.seconds,
          .settle = o.vs.empty() ? 0 : 0.008};
}

std::string ratio_text(const std::string& name, const compare::Spread& r) {
  return fmt::format("x{:.2f} [{:.2f} {:.2f}] {}", r.median, r.low, r.high, name);
}

std::string line(const compare::CaseBench& b) {
  const auto time = b.result.sides[0].time();
  const double s = b.seconds();
  std::string text = fmt::format("{:<44} {:>9} [{} {}]  {:>11}  {:>4.0f} % of light", lab::case_label(b.what),
                                 lab::roofline::show_seconds(s), lab::roofline::show_seconds(time.low),
                                 lab::roofline::show_seconds(time.high),
                                 b.compute_bound ? fmt::format("{:.0f} GFLOP/s", b.cost.operations / s / 1e9)
                                                 : fmt::format("{:.1f} GB/s", b.cost.bytes() / s / 1e9),
                                 100 * b.score());
  const auto fault = b.fault();
  if (!fault.empty()) text += "  FAULT: " + fault;
  for (std::size_t i = 1; fault.empty() && i < b.result.sides.size(); ++i)
    text += "  " + ratio_text(b.result.sides[i].name, b.result.ratio(b.result.sides[i].name, compare::kOurs));
  if (b.self_test) {
    const auto& t = *b.self_test;
    text += fmt::format("  A/A: {} of {} within 1 %, interval holds 1 in {}", t.within, t.repeats(), t.covered);
    if (t.settled < t.repeats()) text += fmt::format(", {} too noisy", t.repeats() - t.settled);
  } else if (!b.result.settled) {
    text += fmt::format("  noisy: +-{:.1f} %", 100 * b.result.half_width);
  }
  if (b.disturbance.heavy()) text += "  " + b.disturbance.text();
  return text + "\n";
}

Json header(const BenchOptions& o, const Pool& pool, const compare::Options& p) {
  const auto m = lab::this_machine();
  return {{"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"threads", pool.threads()}, {"date", lab::roofline::today()}}},
          {"protocol",
           {{"cache", o.cold ? "cold" : "warm"},
            {"target_seconds", p.target},
            {"limit_seconds", p.limit},
            {"patience", p.patience},
            {"half_width", p.half_width},
            {"confidence", p.confidence},
            {"order", "random order, the next round in reverse order"},
            {"seed", p.seed}}},
          {"peers", Json::object()},
          {"missing", Json::object()},
          {"cases", Json::array()}};
}

/// Share of all A/A repeats that ended within 1 %, and what to make of it.
Json overall(const std::vector<compare::CaseBench>& done, std::string& text) {
  int repeats = 0, within = 0, covered = 0, settled = 0;
  for (const auto& b : done)
    repeats += b.self_test->repeats(), within += b.self_test->within, covered += b.self_test->covered,
        settled += b.self_test->settled;
  const double share = repeats ? static_cast<double>(within) / repeats : 0;
  const bool met = share >= 0.95;
  text += fmt::format(
      "A/A: {} of {} repeats within 1 % ({:.1f} %; goal 95 %), interval of 95 % holds 1 in {}{}\n", within, repeats,
      100 * share, covered,
      met ? ""
          : fmt::format(
                "; this machine is too noisy now: {} of {} repeats could not narrow their interval in the time given",
                repeats - settled, repeats));
  return {{"repeats", repeats},          {"within_1_percent", within}, {"share", share},
          {"interval_holds_1", covered}, {"settled", settled},         {"goal_met", met}};
}

int list_cases(const BenchOptions& o) {
  Json j = Json::array();
  std::string text;
  for (const auto& c : wanted_cases(o)) {
    text += lab::case_label(c) + "\n";
    j.push_back({{"op", c.op},
                 {"shape", c.shape},
                 {"dtype", lab::dtype_word(c.dtype)},
                 {"pass", c.backward ? "fwd+bwd" : "fwd"}});
  }
  const Json all = {{"cases", j}};
  if (o.to_stdout) print_json(all);
  else print_text(text);
  if (!o.to_stdout && !o.json.empty()) io::write_file_atomic(o.json[0], all.dump(1) + "\n");
  return exit_code::kDone;
}

/// A swept case: its ratio to its fastest peer, or its share of the speed of light.
struct Swept {
  double ratio;
  std::string what;  // the case and the peer
  std::string ways;  // how our side computes it
  auto operator<=>(const Swept&) const = default;
};

/// Of sorted cases.
Json spread_of(const std::vector<Swept>& found) {
  const auto at = [&](double share) {
    return found[static_cast<std::size_t>(share * static_cast<double>(found.size() - 1))].ratio;
  };
  return {{"cases", found.size()}, {"least", at(0)}, {"p5", at(0.05)}, {"median", at(0.5)}, {"most", at(1)}};
}
std::string text_of(const Json& spread) {
  return fmt::format("least {:.2f}, 5th percentile {:.2f}, median {:.2f}, most {:.2f}",
                     spread.at("least").get<double>(), spread.at("p5").get<double>(), spread.at("median").get<double>(),
                     spread.at("most").get<double>());
}

/// How the swept cases are distributed, of each op and of all, and the ten worst: ratios to the fastest peer of each that
/// has one, else shares of the speed of light.
Json distribution(const BenchOptions& o, const Json& cases, std::string& text) {
  std::vector<Swept> found;
  std::map<std::string, std::vector<Swept>> by_op;
  const bool peers = std::any_of(cases.begin(), cases.end(), [](const Json& c) { return c.contains("ratios"); });
  for (const Json& c : cases) {
    const Json ratios = c.value("ratios", Json::object());
    if (peers && ratios.empty()) continue;
    double value = peers ? 1e30 : c.at("speed_of_light_score").get<double>();
    std::string of = peers ? "" : "of light";
    for (const auto& [name, r] : ratios.items())
      if (peers && r.at("median").get<double>() < value) value = r.at("median").get<double>(), of = name;
    const auto op = c.at("op").get<std::string>();
    found.push_back({value,
                     fmt::format("{} {} {} {}, {}", op, c.at("shape").get<std::string>(),
                                 c.at("dtype").get<std::string>(), c.at("pass").get<std::string>(), of),
                     fmt::format("{}", fmt::join(c.value("ways", std::vector<std::string>()), "; "))});
    by_op[op.substr(0, op.find('+'))].push_back(found.back());
  }
  Json result{{"shapes", o.sweep},        {"seed", o.seed},
              {"compared", found.size()}, {"against", peers ? "the fastest peer" : "light"},
              {"ops", Json::object()},    {"worst", Json::array()}};
  if (found.empty()) return result;
  std::sort(found.begin(), found.end());
  result.update(spread_of(found));
  text += fmt::format("{} shapes, seed {}, {}:\n", found.size(), o.seed,
                      peers ? "times as fast as the fastest peer" : "share of the speed of light");
  for (auto& [op, of_op] : by_op) {
    std::sort(of_op.begin(), of_op.end());
    result["ops"][op] = spread_of(of_op);
    text += fmt::format("  {:<14} {:>4}  {}\n", op, of_op.size(), text_of(result["ops"][op]));
  }
  text += fmt::format("  {:<14} {:>4}  {}; the worst:\n", "all", found.size(), text_of(result));
  for (std::size_t i = 0; i < std::min<std::size_t>(10, found.size()); ++i) {
    const auto& worst = found[i];
    text += fmt::format("  {:6.3f}  {}{}\n", worst.ratio, worst.what, worst.ways.empty() ? "" : ", by " + worst.ways);
    result["worst"].push_back({{"case", worst.what}, {"ratio", worst.ratio}, {"ways", worst.ways}});
  }
  return result;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& o)
      : o_(o),
        protocol_(protocol_of(o)),
        cases_(wanted_cases(o)),
        pool_(o.threads.checked("bench")),
        stream_(device_from_name(o.device), pool_),
        tuning_(start_tuning(o.tune, stream_.device(), pool_)),
        out_(header(o, pool_, protocol_)) {
    environment_ = compare::environment_of(stream_);
    out_["device"] = o.device;
    stream_.set_ways(tuned_ways(tuning_, o.tune, {}));
    if (stream_.device().is_cuda()) {
      const auto gpu = lab::describe_gpu(stream_.device().index);
      out_["machine"]["gpu"] = gpu.name, out_["machine"]["driver"] = gpu.driver;
    }
  }

  int run() {
    const bool text = !o_.to_stdout;
    measure_roofs();
    load_peers();
    Work progress(console());
    if (o_.aa)
      say("A/A: {} repeats of {} s for each of {} cases, at most {} in total", o_.repeats, o_.seconds, cases_.size(),
          format_duration(self_test_seconds() * static_cast<double>(cases_.size())));
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const auto done = static_cast<double>(i), all = static_cast<double>(cases_.size());
      const std::vector<Fact> names{{fmt::format("{}/{} {}", i + 1, cases_.size(), lab::case_label(cases_[i]))}};
      progress.show("bench", done / all, names);
      try {
        done_.push_back(one(cases_[i], [&](int repeats, double) {
          auto facts = names;
          facts.push_back({fmt::format("{} of {} repeats", repeats, o_.repeats)});
          progress.show("bench", (done + static_cast<double>(repeats) / static_cast<double>(o_.repeats)) / all, facts);
        }));
      } catch (const Error& e) {
        if (!stream_.device().is_cuda() && o_.sweep == 0) throw;
        out_["failed"][lab::case_label(cases_[i])] = e.what();  // a GPU may lack the code or the memory for one case
        say("{}: {}", lab::case_label(cases_[i]), e.what());
        continue;
      }
      if (text) print_text(line(done_.back()));
      out_["cases"].push_back(compare::to_json(done_.back()));
    }
    std::string end;
    if (o_.aa) out_["aa"] = overall(done_, end);
    else
      end += python_peers({.names = o_.vs, .go_on = o_.sweep > 0}, timed_cases(), protocol_, pool_.threads(), o_.device,
                          out_);
    if (o_.sweep > 0) out_["sweep"] = distribution(o_, out_["cases"], end);
    for (const auto& [name, why] : out_["missing"].items())
      end += fmt::format("missing {}: {}\n", name, why.get<std::string>());
    out_["disturbed"] = disturbed_;
    if (disturbed_ > 0)
      end += fmt::format("{} of {} figures are not to be trusted: other programs ran at the same time\n", disturbed_,
                         done_.size());
    progress.end();
    if (text) print_text(end);
    finish();
    return exit_code::kDone;
  }

 private:
  void measure_roofs() { roofs_ = lab::roofs(stream_.device(), pool_, lab::Remember::best); }
  void load_peers() {
    for (const auto& name : compare::library_peers()) {
      if (std::find(o_.vs.begin(), o_.vs.end(), name) == o_.vs.end()) continue;
      peers_.push_back(compare::library_peer(name, pool_.threads()));
      const auto& p = peers_.back();
      if (!p.missing.empty()) out_["missing"][name] = p.missing;
      else
        out_["peers"][name] = {{"version", p.version}, {"file", p.file}, {"threads", pool_.threads()}},
        say("{}: {} ({})", name, p.version, p.file);
    }
    if (!stream_.device().is_cuda()) return;
    for (const auto& name : compare::gpu_library_peers())
      if ((o_.sweep > 0 && !o_.vs.empty()) || std::find(o_.vs.begin(), o_.vs.end(), name) != o_.vs.end())
        peers_.push_back(compare::gpu_library_peer(name, stream_));
  }
  /// The cases in out_["cases"]: those that did not fail.
  std::vector<lab::Case> timed_cases() const {
    std::vector<lab::Case> list;
    for (const auto& b : done_) list.push_back(b.what);
    return list;
  }
  /// For all repeats of one case: a repeat that takes longer on a noisy machine uses up the time of others.
  double self_test_seconds() const { return o_.repeats * o_.seconds; }

  compare::CaseBench one(const lab::Case& c, const compare::AfterRepeat& after) {
    const lab::DisturbanceWatch watch;
    auto b = timed(c, after);
    if (!stream_.device().is_cuda()) b.disturbance = watch.so_far();
    disturbed_ += b.disturbance.heavy();
    return b;
  }
  compare::CaseBench timed(const lab::Case& c, const compare::AfterRepeat& after) {
    if (tuning_ && o_.tune.mode == "full")
      stream_.set_ways(tuned_ways(tuning_, o_.tune, {&lab::CaseRun(c, nullptr, &stream_).executable()}));
    if (o_.aa)
      return compare::self_test_case(c, stream_, *environment_, roofs_, protocol_, o_.repeats, self_test_seconds(),
                                     after);
    auto b = compare::bench_case(c, stream_, *environment_, roofs_, peers_, protocol_);
    for (int again = 0; again < 2 && !b.fault().empty();
         ++again) {  // the roofs may have been measured while this machine was slower
      measure_roofs();
      b = compare::bench_case(c, stream_, *environment_, roofs_, peers_, protocol_);
    }
    return b;
  }
  void finish() {
    if (o_.to_stdout) return print_json(out_);
    if (!o_.json.empty()) io::write_file_atomic(o_.json[0], out_.dump(1) + "\n");
  }

  const BenchOptions& o_;
  compare::Options protocol_;
  std::vector<lab::Case> cases_;
  Pool pool_;
  Stream stream_;
  std::optional<lab::tune::Session> tuning_;
  std::unique_ptr<compare::Environment> environment_;
  lab::Roofs roofs_;
  std::vector<compare::Peer> peers_;
  std::vector<compare::CaseBench> done_;
  Json out_;
  int disturbed_ = 0;  // cases
};

int bench(BenchOptions& o, const Command& sub) {
  if (sub.chosen("comm")) return o.comm();
  if (sub.chosen("compose")) return o.compose();
  if (sub.chosen("ddp")) return o.ddp();
  if (sub.chosen("decode")) return o.decode();
  if (sub.chosen("serve")) return o.serve();
  if (sub.chosen("tp")) return o.tp();
  if (sub.chosen("zero")) return o.zero();
  settle_words(o);
  o.vs = parse_peers(o.vs_words);
  if (o.cold && o.warm) fail_usage("bench", "--cold and --warm exclude each other");
  for (const auto& name : compare::library_peers())
    if (o.device != "cpu" && std::find(o.vs.begin(), o.vs.end(), name) != o.vs.end())
      fail_usage("bench", "{} computes on the CPU; on {} the peers are torch, triton, cublaslt and cudnn", name,
                 o.device);
  for (const auto& name : compare::gpu_library_peers())
    if (o.device == "cpu" && std::find(o.vs.begin(), o.vs.end(), name) != o.vs.end())
      fail_usage("bench", "{} computes on GPUs: use --device cuda", name);
  if (o.aa && o.sweep > 0) fail_usage("bench", "--aa compares an op with itself: leave --sweep out");
  if (o.aa && !o.vs.empty()) fail_usage("bench", "--aa compares an op with itself: leave --vs out");
  if (!o.to_stdout && !o.json.empty()) check_writable(o.json[0]);
  return o.list ? list_cases(o) : Bench(o).run();
}

}  // namespace

void add_bench(const Command& program, Run& run) {
  add_verb<BenchOptions>(
      program, run, "bench", "Times ops with one protocol: share of the speed of light, ratio to other libraries",
      [](const Command& sub, BenchOptions& o) {
        sub.option("ops", o.ops, "Ops, or variants such as linear+bias_gelu; default: all");
        sub.option("--vs", o.vs_words,
                   "Peers: torch, triton; on a CPU onednn, openblas; on a GPU cublaslt, cudnn (with --sweep always). A "
                   "peer that is not installed is reported as missing")
            .kind("A,B");
        sub.option("--json", o.json, "One JSON object on stdout, or in FILE if a name is given")
            .values(0, 1)
            .kind("[FILE]");
        sub.option("--rounds", o.rounds,
                   "Rounds of each comparison, instead of --seconds; default: until the interval is narrow enough")
            .range(1, 100000);
        sub.option("--seconds", o.seconds,
                   "Time for each comparison (4), and on average for each repeat of --aa; a comparison takes up to "
                   "five times as long if its ratio is still uncertain")
            .range(0.01, 3600.0);
        sub.flag("--cold", o.cold, "Flush the caches before each call");
        sub.flag("--warm", o.warm, "Leave operands where the last call left them (the default)");
        sub.flag("--aa", o.aa, "Compare each op with itself, to see how far the protocol can be trusted here and now");
        sub.option("--repeats", o.repeats, "Repeats of --aa (20)").range(1, 100000);
        sub.option("--shape", o.shape, "Another shape for the named ops: 512x1000");
        sub.option("--sweep", o.sweep,
                   "Draw this many shapes of each op, from those of models and from odd ones; print the distribution "
                   "of the ratios, and the ten worst with the ways in which a GPU computed them")
            .range(1, 100000);
        sub.option("--seed", o.seed, "Seed of --sweep: the same seed draws the same shapes (1)");
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_threads_option(sub, o.threads);
        add_tune_option(sub, o.tune);
        add_ways_option(sub, o.tune);
        sub.option("--dtype", o.dtype, "Only f32 or only bf16").one_of({"f32", "bf16"});
        sub.flag("--forward", o.forward, "Time only the forward pass, not forward and backward together");
        sub.flag("--list", o.list, "Print the cases without timing them");
        o.comm = add_bench_comm(sub);
        o.compose = add_bench_compose(sub);
        o.ddp = add_bench_ddp(sub);
        o.decode = add_bench_decode(sub);
        o.serve = add_bench_serve(sub);
        o.tp = add_bench_tp(sub);
        o.zero = add_bench_zero(sub);
      },
      bench);
}

}  // namespace hpcdl::cli
