// hpcdl launch: N ranks of one command on this host, or on each of several, restarted from their last checkpoint
// when one is lost.

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "cli/hosts.h"
#include "cli/ranks.h"
#include "cli/self.h"
#include "cli/verb.h"
#include "hpcdl/comm/bootstrap/place.h"
#include "hpcdl/comm/bootstrap/secret.h"
#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/train/stop.h"

namespace hpcdl::cli {

namespace {

constexpr int kMostRanks = 4096;

struct LaunchOptions {
  int count = 0, max_restarts = 0;
  double grace = 10;
  std::string program;
  std::vector<std::string> hosts;
  std::string ssh = "ssh -T -o BatchMode=yes", there;
  std::vector<std::string> words;
  bool plain = false, agent = false;
};

/// This program, by the name that ps and top show; if its file has been replaced since, the one that is running.
std::string own_path() {
  const std::filesystem::path self = "/proc/self/exe";
  std::error_code none;
  const auto file = std::filesystem::read_symlink(self, none);
  return std::filesystem::equivalent(file, self, none) ? file.string() : self.string();
}

RanksOptions ranks_options(const LaunchOptions& o, int restart) {
  RanksOptions r{.program = o.program.empty() ? own_path() : o.program,
                 .words = o.words,
                 .count = o.count,
                 .environment = {},
                 .plain = o.plain,
                 .grace = std::chrono::milliseconds(static_cast<std::int64_t>(o.grace * 1000))};
  const int port = comm::port_of(comm::listen_at("127.0.0.1", 0));
  r.environment = {{"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(port)},
                   {"TORCHELASTIC_RUN_ID", fmt::format("hpcdl-{}", getpid())},
                   {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
                   {"TORCHELASTIC_MAX_RESTARTS", std::to_string(o.max_restarts)},
                   {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  // A secret, so that other users of this host can neither join the ranks nor pretend to be one.
  if (comm::job_secret().empty()) r.environment["HPCDL_SECRET"] = comm::new_secret();
  if (!o.hosts.empty()) {
    r.program = o.program;
    r.environment["HPCDL_SECRET"] =
        r.environment.contains("HPCDL_SECRET") ? r.environment["HPCDL_SECRET"] : comm::job_secret();
    return r;
  }
  // The ranks share the CPUs that this process may use.
  if (!std::getenv("OMP_NUM_THREADS") && !std::getenv("HPCDL_THREADS"))
    r.environment["OMP_NUM_THREADS"] = std::to_string(std::max(1, usable_cpus() / o.count));
  return r;
}

/// After Ctrl-C this program ends by SIGINT, too, so that a script around it stops.
bool interrupted(const RanksResult& result, const RankEnd& first) {
  return result.asked == SIGINT && (first.signal == SIGINT || first.code == exit_code::kInterrupted);
}

/// A restart can help after a lost rank, but not after wrong arguments or errors that would come again.
bool worth_restarting(const RanksResult& result) { return !result.asked && result.code() == exit_code::kPeerLost; }

RanksResult start_ranks(const LaunchOptions& o, int restart) {
  auto ranks = ranks_options(o, restart);
  if (o.hosts.empty()) return run_ranks(ranks);
  return run_on_hosts(
      {.hosts = o.hosts, .ssh = o.ssh, .program = o.there.empty() ? own_path() : o.there, .ranks = std::move(ranks)});
}

void check(const LaunchOptions& o) {
  if (o.count == 0) fail_usage("launch", "expected a number of ranks: hpcdl launch -n 4 -- train -c run.toml");
  for (const auto& host : o.hosts)
    if (host.empty() || host.starts_with('-'))
      fail_usage("launch", "--hosts: \"{}\" is not a host; expected names with commas between them", host);
  if (o.hosts.empty() && !o.there.empty())
    fail_usage("launch", "--there says where hpcdl is on other hosts, and needs --hosts");
}

int launch_verb(LaunchOptions& o) {
  if (o.agent) return run_agent();
  check(o);
  if (o.words.empty() && o.program.empty())
    fail_usage("launch", "expected a command to start: hpcdl launch -n {} -- train -c run.toml", o.count);
  if (const auto place = comm::find_place(comm::process_environment()); place.world > 1)
    fail_usage("launch", "this process is already {}: start the ranks with that launcher alone, without hpcdl launch",
               comm::describe(place));
  for (int restart = 0;; ++restart) {
    const auto result = start_ranks(o, restart);
    const int code = result.code();
    const RankEnd* first = result.cause();
    require(first || !result.lost_lines, "output", "lines of the ranks could not be written: {}",
            std::strerror(result.lost_lines));
    if (!first) return code;
    const bool saved = code == exit_code::kRequeue || code == exit_code::kInterrupted;
    if (saved) say("hpcdl: [launch] {}: stopped; to continue from there:\n  {}", first->text(), own_command());
    if (interrupted(result, *first)) end_by(SIGINT);
    if (saved) return code;
    if (!worth_restarting(result) || restart >= o.max_restarts) {
      say("hpcdl: [launch] {}", first->text());
      return code;
    }
    say("hpcdl: [launch] {}; restart {} of {}, from the last checkpoint", first->text(), restart + 1, o.max_restarts);
  }
}

}  // namespace

void add_launch(const Command& program, Run& run) {
  add_verb<LaunchOptions>(
      program, run, "launch",
      "Runs a command as N ranks, here or on several hosts: hpcdl launch -n 4 -- train -c run.toml",
      [](const Command& sub, LaunchOptions& o) {
        sub.option("-n,--ranks", o.count, "Number of ranks; with --hosts, on each host").range(1, kMostRanks);
        sub.option("--hosts", o.hosts, "Hosts on which ranks are started over ssh: a,b").separated_by(',');
        sub.option("--ssh", o.ssh, "Command that is called with a host and a command for that host").shows_default();
        sub.option("--there", o.there, "Path of hpcdl on the hosts of --hosts; default: its path on this host");
        sub.flag("--agent", o.agent, "What --hosts starts on each host").group("");
        sub.option("--max-restarts", o.max_restarts, "How many times all ranks are restarted after a rank was lost")
            .range(0, 1000000);
        sub.option("--grace", o.grace,
                   "Seconds that the other ranks have to end after one has failed; then they get SIGTERM, and after "
                   "the same time again SIGKILL")
            .range(0.0, 86400.0);
        sub.option("--program", o.program, "Start this program instead of hpcdl");
        sub.flag("--plain", o.plain,
                 "Pass the standard output of rank 0 on as it is; lines of all other ranks go to standard error");
        sub.option("words", o.words, "After --: the verb and options with which each rank runs hpcdl");
        sub.footer(
            "Each line of output starts with [rank N]. If standard input is a file or a pipe, rank 0 reads it. "
            "SIGTERM, "
            "SIGINT and SIGUSR1 are passed on to all ranks, and so is SIGHUP, as SIGTERM. Exit codes: 0 if all ranks "
            "ended with 0; 71 if a rank was lost; 75 if the ranks have saved and are to be started again; otherwise "
            "the code of the rank that failed first. After Ctrl-C, hpcdl launch waits for the ranks and then ends by "
            "that signal (130). With --hosts, every host needs the same version of hpcdl (--there names its path) "
            "and the current folder under the same path; the ranks get the environment variables of this process, and "
            "the secret of the job over ssh. "
            "Ranks on several hosts can also be started by srun, mpirun or torchrun --no-python.");
      },
      launch_verb);
}

}  // namespace hpcdl::cli
