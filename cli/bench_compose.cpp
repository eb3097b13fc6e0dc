// hpcdl bench compose: which settings of a training go together, tried out on ranks that are threads.

#include "cli/bench_compose.h"

#include <array>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "tools/compose/compose.h"

namespace hpcdl::cli {
namespace {

constexpr int kDifferent = 1;  // exit code: a pair gives another result

struct BenchComposeOptions {
  int ranks = 4;
  bool table = false;
  std::vector<std::string> json;
};

int compose(const BenchComposeOptions& o) {
  if (o.table) return print_text(lab::composition_table()), exit_code::kDone;
  check_writable(o.json.empty() ? "" : o.json[0]);
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  const auto start = std::chrono::steady_clock::now();
  const io::TempFolder folder;
  lab::Composer composer(folder.path());
  auto list = nlohmann::json::array();
  std::array<int, 3> count{};
  int too_many = 0;
  for (const auto& pair : lab::setting_pairs()) {
    if (lab::ranks_of(pair) > o.ranks) {
      ++too_many;
      continue;
    }
    const auto result = composer.run(pair);
    ++count[static_cast<std::size_t>(result.outcome)];
    list.push_back(to_json(result));
    say("{}", to_text(result));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  using Outcome = lab::Composed::Outcome;
  const auto number = [&](Outcome outcome) { return count[static_cast<std::size_t>(outcome)]; };
  nlohmann::json report{{"ranks", o.ranks}, {"seconds", seconds.count()}, {"need_more_ranks", too_many}};
  for (const auto outcome : {Outcome::matched, Outcome::refused, Outcome::differs})
    report[std::string(outcome_name(outcome))] = number(outcome);
  report["configurations"] = std::move(list);
  if (!o.json.empty() && !to_stdout) io::write_file_atomic(o.json[0], report.dump(1) + "\n");
  if (to_stdout) print_json(report);
  say("{} matched, {} refused, {} differ, {} need more ranks; {:.0f} s", number(Outcome::matched),
      number(Outcome::refused), number(Outcome::differs), too_many, seconds.count());
  return number(Outcome::differs) == 0 ? exit_code::kDone : kDifferent;
}

}  // namespace

std::function<int()> add_bench_compose(const Command& bench) {
  auto o = std::make_shared<BenchComposeOptions>();
  const Command sub = bench.subcommand("compose",
                                       "Trains a small model with every pair of settings on ranks that are threads, "
                                       "and compares losses, norms and weights with those of one rank");
  sub.option("-n,--ranks", o->ranks, "The most ranks; pairs that need more are left out").range(1, 64).shows_default();
  sub.flag("--table", o->table, "Only print which pairs are refused, as a table in Markdown");
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] { return compose(*o); };
}

}  // namespace hpcdl::cli
