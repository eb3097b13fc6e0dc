// hpcdl bench comm: collectives on the ranks that mpirun has started, or on threads, algorithm against algorithm and
// against MPI's own.

#include "cli/bench_comm.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/bench_ranks.h"
#include "cli/verb.h"
#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/machine/machine.h"
#include "tools/comm/bench.h"
#include "tools/comm/operands.h"
#include "tools/roofline/report.h"

namespace hpcdl::cli {

namespace {

using comm::Algorithm;
using comm::Collective;
using comm::Group;

struct BenchCommOptions {
  std::string collective = "all_reduce", algorithm, bytes, dtype = "fp32", op = "sum", device = "cpu", memory,
              least = "4", most = "256M", svg;
  std::vector<std::string> json;
  int threads = 0;
  bool alone = false, save = false;
  lab::CommOptions protocol;
};

/// "1M", "64k", "4".
std::int64_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  double n = 0;
  try {
    n = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = end ? text.substr(end) : "?";
  const double scale = unit.empty() || unit == "B"                                   ? 1
                       : unit == "k" || unit == "K" || unit == "KB" || unit == "KiB" ? 1024
                       : unit == "M" || unit == "MB" || unit == "MiB"                ? 1048576
                       : unit == "G" || unit == "GB" || unit == "GiB"                ? 1073741824
                                                                                     : 0;
  if (scale == 0 || !(n * scale >= 1) || n * scale > 0x1p40)
    fail_usage("bench", "expected a size such as 4, 64K, 1M or 1G, got \"{}\"", text);
  return static_cast<std::int64_t>(n * scale);
}

/// One of the first `count` values of E.
template <class E, class Name>
E parse_name(const std::string& word, std::size_t count, Name name, std::string_view what) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.emplace_back(name(static_cast<E>(i)));
    if (names.back() == word) return static_cast<E>(i);
  }
  std::string list;
  for (const auto& n : names) list += (list.empty() ? "" : ", ") + n;
  fail_usage("bench", "no {} \"{}\"{}: expected {}", what, word, io::did_you_mean(word, names), list);
}

lab::CommCase case_of(const BenchCommOptions& o, std::int64_t bytes) {
  // all_reduce, reduce_scatter, all_gather and all_to_all; sum, max and avg
  lab::CommCase c{parse_name<Collective>(o.collective, 4, comm::collective_name, "collective"), bytes,
                  lab::comm_dtype(o.dtype), parse_name<comm::Reduce>(o.op, 3, comm::reduce_name, "operation")};
  if (c.dtype == DType::none)
    fail_usage("bench", "unknown dtype \"{}\": expected fp32, bf16, fp16, fp64, int32 and so on", o.dtype);
  if (!is_float(c.dtype) && c.op == comm::Reduce::avg)
    fail_usage("bench", "integers have no average: take --op sum or max");
  return c;
}

/// MPI cannot add 16-bit floats.
bool native_can(const Group& g, const lab::CommCase& c) {
  const bool reduces = c.what == Collective::all_reduce || c.what == Collective::reduce_scatter;
  return lab::has_native(g) && !(reduces && (c.dtype == DType::bf16 || c.dtype == DType::f16));
}

class CommBench {
 public:
  CommBench(const BenchCommOptions& o, Group g, Device device)
      : o_(o), g_(std::move(g)), protocol_(o.protocol), stream_(device, pool_) {}

  void run() {
    if (speaks()) check_writable(o_.svg), check_writable(o_.json.empty() ? "" : o_.json[0]);
    if (o_.algorithm.empty() || o_.bytes.empty()) sweep();
    else one();
  }

 private:
  bool speaks() const { return g_.rank() == 0; }
  std::string ranks() const {
    const int hosts = lab::hosts_of(g_);
    return fmt::format("{} ranks on {} host{}", g_.size(), hosts, hosts > 1 ? "s" : "");
  }
  std::string title() const {
    return fmt::format("{}, {}, {}, {}", o_.collective, ranks(),
                       o_.device == "cpu" ? std::string(g_.transport()) : o_.device, o_.dtype);
  }
  /// Rounds the bytes that are moved to whole elements, the same number for each rank.
  lab::CommCase case_here(std::int64_t bytes) const {
    auto c = case_of(o_, bytes);
    c.bytes = lab::part_elements(c, g_.size()) * lab::parts(c, g_.size()) * dtype_bytes(c.dtype);
    return c;
  }
  bool to_stdout() const { return !o_.json.empty() && o_.json[0].empty(); }

  std::vector<lab::CommSide> sides_of(const lab::CommCase& c) const {
    const bool on_gpus = stream_.device().is_cuda(), native = (on_gpus || native_can(g_, c)) && !o_.alone;
    const auto sides = lab::comm_sides(g_, stream_, c, native);
    if (o_.algorithm.empty()) return sides;
    const Algorithm a =
        parse_name<Algorithm>(o_.algorithm, std::size(comm::kAlgorithmNames), comm::algorithm_name, "algorithm");
    const bool can_share = !on_gpus && lab::hosts_of(g_) == 1 && g_.size() > 1,
               shares = a == Algorithm::shared || a == Algorithm::automatic;
    std::vector<lab::CommSide> wanted{{a, (o_.memory.empty() ? can_share && shares : o_.memory == "window")
                                              ? lab::Memory::window
                                              : lab::Memory::own}};
    const bool known = a == Algorithm::automatic ||
                       std::any_of(sides.begin(), sides.end(), [&](const auto& s) { return s.algorithm == a; });
    if (!known) refuse(c, sides);
    if (native && a != Algorithm::native) wanted.push_back({Algorithm::native, lab::Memory::own});
    return wanted;
  }

  [[noreturn]] void refuse(const lab::CommCase& c, const std::vector<lab::CommSide>& possible) const {
    std::vector<std::string_view> names;
    for (const auto& s : possible)
      if (const auto name = comm::algorithm_name(s.algorithm);
          s.algorithm != Algorithm::automatic && (names.empty() || names.back() != name))
        names.push_back(name);
    fail_usage("bench", "no {} by {} between {} over {}: expected auto, {}", comm::collective_name(c.what),
               o_.algorithm, ranks(), g_.transport(), fmt::join(names, ", "));
  }

  void one() {
    const auto c = case_here(parse_bytes(o_.bytes));
    const auto results = lab::bench_collective(g_, stream_, c, sides_of(c), protocol_);
    if (!speaks()) return;
    auto json = lab::comm_json(c, results[0], g_);
    json["device"] = o_.device;
    if (!o_.svg.empty()) io::write_file_atomic(o_.svg, lab::comm_picture({{c, results}}, title(), g_.size()));
    if (to_stdout()) return print_json(json);
    if (!o_.json.empty()) io::write_file_atomic(o_.json[0], json.dump(1) + "\n");
    print_text(lab::comm_table({{c, results}}, g_.size()));
  }

  void sweep() {
    const std::int64_t least = parse_bytes(o_.bytes.empty() ? o_.least : o_.bytes),
                       most = parse_bytes(o_.bytes.empty() ? o_.most : o_.bytes);
    Work progress(speaks() ? console() : Console());
    for (std::int64_t bytes = least; bytes <= most; bytes *= 4) {
      const auto c = case_here(bytes);
      if (!rows_.empty() && c.bytes == rows_.back().what.bytes) continue;
      progress.show("bench comm",
                    std::log2(static_cast<double>(bytes) / static_cast<double>(least)) /
                        std::log2(4.0 * static_cast<double>(most) / static_cast<double>(least)),
                    {{fmt::format("{} of {}", o_.collective, format_bytes(static_cast<double>(c.bytes)))}});
      rows_.push_back({c, lab::bench_collective(g_, stream_, c, sides_of(c), protocol_)});
    }
    progress.end();
    if (!speaks()) return;
    report();
    if (const auto n = lab::network_roof(rows_, g_.size(), lab::hosts_of(g_), o_.device)) lab::remember_network(*n);
    if (o_.save)
      lab::save_comm_policy(rows_, g_), say("{}: the fastest algorithms on this machine; auto uses them from now on",
                                            lab::comm_policy_file().string());
  }

  void report() const {
    const auto m = lab::this_machine();
    Json all = {{"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"date", lab::roofline::today()}}},
                {"collective", o_.collective},
                {"ranks", g_.size()},
                {"hosts", lab::hosts_of(g_)},
                {"transport", g_.transport()},
                {"device", o_.device},
                {"rows", Json::array()}};
    for (const auto& row : rows_)
      for (const auto& r : row.results) all["rows"].push_back(lab::comm_json(row.what, r, g_));
    if (!o_.svg.empty()) io::write_file_atomic(o_.svg, lab::comm_picture(rows_, title(), g_.size()));
    if (!o_.json.empty() && !to_stdout()) io::write_file_atomic(o_.json[0], all.dump(1) + "\n");
    if (to_stdout()) print_json(all);
    else print_text(title() + "\n" + lab::comm_table(rows_, g_.size()));
  }

  const BenchCommOptions& o_;
  Group g_;
  lab::CommOptions protocol_;
  Pool pool_{1};
  Stream stream_;
  std::vector<lab::CommRow> rows_;
};

int bench_comm(const BenchCommOptions& o) {
  case_of(o, 4);
  if (!o.algorithm.empty())
    parse_name<Algorithm>(o.algorithm, std::size(comm::kAlgorithmNames), comm::algorithm_name, "algorithm");
  if (o.bytes.empty() && parse_bytes(o.least) > parse_bytes(o.most))
    fail_usage("bench", "--min {} is more than --max {}", o.least, o.most);
  if (o.device != "cpu" && (o.save || !o.memory.empty()))
    fail_usage("bench", "--save and --memory are for CPUs: leave them out between GPUs");
  if (o.save && !o.algorithm.empty()) fail_usage("bench", "--save compares algorithms: leave --algorithm out");
  if (!o.memory.empty() && o.memory != "window" && o.memory != "private")
    fail_usage("bench", "expected --memory window or private, got \"{}\"", o.memory);
  return on_bench_ranks("comm", o.threads, o.device,
                        [&](const Group& world, Device device) { CommBench(o, world, device).run(); });
}

}  // namespace

std::function<int()> add_bench_comm(const Command& bench) {
  auto o = std::make_shared<BenchCommOptions>();
  const Command sub = bench.subcommand("comm",
                                       "Times collectives on the ranks that mpirun has started: every size and "
                                       "algorithm, or one of them, against MPI's own");
  sub.option("--collective", o->collective, "all_reduce, reduce_scatter, all_gather or all_to_all").shows_default();
  sub.option("--algorithm", o->algorithm,
             fmt::format("One of {}; default: all that can be used", fmt::join(comm::kAlgorithmNames, ", ")));
  sub.option("--bytes", o->bytes, "Size of the larger tensor of a rank: 64K, 1M; default: all from --min to --max");
  sub.option("--min", o->least, "Smallest size of a sweep").shows_default();
  sub.option("--max", o->most, "Largest size of a sweep; each size is four times the one before").shows_default();
  sub.option("--dtype", o->dtype, "fp32, bf16, fp16, fp64, int32 and so on").shows_default();
  sub.option("--op", o->op, "sum, max or avg").shows_default();
  sub.option("--device", o->device, "cpu, or cuda for the GPUs of the ranks, in captured graphs, against NCCL")
      .shows_default();
  sub.option("--memory", o->memory,
             "Where the tensors are: private, or window, which the ranks of a host share (the default for shared and "
             "auto, because gradients are there)");
  sub.option("-n,--ranks,--threads", o->threads,
             "Run this many ranks as threads of this process, instead of those of mpirun")
      .range(2, 64);
  sub.option("--seconds", o->protocol.seconds, "Seconds for each size").shows_default().range(0.001, 3600.0);
  sub.option("--rounds", o->protocol.rounds, "Rounds for each size, instead of --seconds").range(3, 100000);
  sub.flag("--check", o->protocol.check, "First compare the results with sums in double");
  sub.flag("--save", o->save, "After a sweep: let auto use what was fastest on this machine from now on");
  sub.flag("--alone", o->alone, "Do not measure native");
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  sub.option("--svg", o->svg, "Draw bus bandwidth over size into this file");
  return [o] { return bench_comm(*o); };
}

}  // namespace hpcdl::cli
