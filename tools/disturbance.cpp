#include "tools/disturbance.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "tools/probe/bound.h"

namespace hpcdl::lab {
namespace {

namespace fs = std::filesystem;

/// Limits that a quiet machine stays below (its daemons, the clock ticks in which others are counted). Of bench's
/// figures for 111 cases on the two processors of a virtual machine (Zen 4, two threads, 0.3 s each), right are those
/// within 10 % of the case's best run, wrong those that are 25 % slower. Reported with limits of 5 | 10 | 20 % waiting:
///   quiet                                7 |   5 |   3 of  98 right ones,   2 |   2 |   2 of   4 wrong ones
///   others now and then                 15 |   8 |   3 of  64 right ones,   5 |   4 |   2 of  24 wrong ones
///   others half of the time              1 |   1 |   1 of  24 right ones,  68 |  68 |  67 of  74 wrong ones
///   one and two busy loops               4 |   4 |   4 of   4 right ones, 212 | 212 | 212 of 212 wrong ones
/// The time that others ran shows busy loops, so waiting is only needed for what that does not show.
constexpr double kWaitedShare = 0.10, kStolenShare = 0.02, kOthersShare = 0.05, kIdleShare = 0.2;
constexpr double kTicks = 4;

double tick() { return 1.0 / static_cast<double>(std::max(1L, ::sysconf(_SC_CLK_TCK))); }

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

double seconds_of(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

/// The time that each thread of this process was ready and did not run: the second word of its schedstat.
std::map<std::string, double> waited_by_thread() {
  std::map<std::string, double> list;
  std::error_code error;
  for (fs::directory_iterator it("/proc/self/task", error), end; !error && it != end; it.increment(error)) {
    std::istringstream words(text_of(it->path() / "schedstat"));
    double ran = 0, waited = 0;
    if (words >> ran >> waited) list[it->path().filename().string()] = waited * 1e-9;
  }
  return list;
}

std::string share_text(double part, double whole) {
  return fmt::format("{:.0f} %", 100 * part / std::max(whole, 1e-9));
}

}  // namespace

ProcessorTimes processor_times(std::string_view proc_stat, const std::vector<int>& processors, double unit) {
  ProcessorTimes sum;
  std::istringstream lines{std::string(proc_stat)};
  for (std::string line; std::getline(lines, line);) {
    int number = -1;
    if (!line.starts_with("cpu")) continue;
    const auto [end, error] = std::from_chars(line.data() + 3, line.data() + line.size(), number);
    if (error != std::errc() || std::find(processors.begin(), processors.end(), number) == processors.end()) continue;
    std::istringstream words(line.substr(static_cast<std::size_t>(end - line.data())));
    // user, nice, system, idle, waiting for a disk, interrupts, soft interrupts, stolen
    std::array<double, 8> t{};
    for (double& x : t)
      if (!(words >> x)) break;
    sum.busy += unit * (t[0] + t[1] + t[2] + t[5] + t[6]);
    sum.idle += unit * (t[3] + t[4]);
    sum.stolen += unit * t[7];
  }
  return sum;
}

bool Disturbance::heavy() const { return !text().empty(); }

std::string Disturbance::text() const {
  const double capacity = seconds * processors;
  if (!(seconds > 0)) return "";
  std::string why;
  const auto add = [&](const std::string& words) { why += (why.empty() ? "" : ", ") + words; };
  if (waited > kWaitedShare * seconds && waited > kTicks * 1e-3)
    add(fmt::format("our threads waited for a processor {} of the time",
                    share_text(std::min(waited, seconds), seconds)));
  if (others > kOthersShare * capacity && others > kTicks * tick() && idle < kIdleShare * capacity)
    add(fmt::format("other programs took {} of the processors", share_text(others, capacity)));
  if (stolen > kStolenShare * capacity && stolen > kTicks * tick())
    add(fmt::format("the host of this virtual machine took {} of the processors", share_text(stolen, capacity)));
  return why.empty() ? "" : "not to be trusted: " + why;
}

nlohmann::ordered_json to_json(const Disturbance& d) {
  return {{"trusted", !d.heavy()},
          {"seconds", d.seconds},
          {"waited_seconds", d.waited},
          {"other_programs_seconds", d.others},
          {"stolen_seconds", d.stolen},
          {"preempted", d.preempted},
          {"why", d.text()}};
}

DisturbanceWatch::DisturbanceWatch() : processors_(allowed_cpus()), begin_(read()) {}

DisturbanceWatch::Counters DisturbanceWatch::read() const {
  Counters c;
  c.when = Clock::now();
  c.system = processor_times(text_of("/proc/stat"), processors_, tick());
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(who, &used);
    c.own += seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
    if (who == RUSAGE_SELF) c.preempted = used.ru_nivcsw;
  }
  c.waited = waited_by_thread();
  return c;
}

Disturbance DisturbanceWatch::so_far() const {
  const Counters now = read();
  Disturbance d;
  d.seconds = std::chrono::duration<double>(now.when - begin_.when).count();
  d.processors = std::max(1, static_cast<int>(processors_.size()));
  for (const auto& [thread, waited] : now.waited) {
    const auto before = begin_.waited.find(thread);
    d.waited += std::max(0.0, waited - (before == begin_.waited.end() ? 0 : before->second));
  }
  d.others = std::max(0.0, now.system.busy - begin_.system.busy - (now.own - begin_.own));
  d.idle = std::max(0.0, now.system.idle - begin_.system.idle);
  d.stolen = std::max(0.0, now.system.stolen - begin_.system.stolen);
  d.preempted = now.preempted - begin_.preempted;
  return d;
}

}  // namespace hpcdl::lab
