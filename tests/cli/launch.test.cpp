// hpcdl launch, with shells as ranks and real signals.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::multiset<std::string> lines(const std::string& text) {
  std::multiset<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.insert(line);
  return all;
}

bool comes_true(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(20ms))
    if (condition()) return true;
  return false;
}

pid_t pid_in(const fs::path& file) {
  pid_t pid = 0;
  comes_true([&] { return static_cast<bool>(std::ifstream(file) >> pid) && pid > 0; });
  return pid;
}

/// Gone, or nobody has waited for it yet.
bool ended(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos || text[bracket + 2] == 'Z';
}

struct Launch : testing::Test {
  std::vector<std::string> words(int n, const std::string& script, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"launch", "-n", std::to_string(n), "--program", "/bin/sh"});
    more.insert(more.end(), {"--", "-c", "D=" + folder.path().string() + "; " + script});
    return more;
  }
  Result sh(int n, const std::string& script, const std::vector<std::string>& more = {}) const {
    return run(words(n, script, more));
  }
  bool there(const std::string& name) const {
    return comes_true([&] { return fs::exists(folder / name); });
  }
  io::TempFolder folder;
};

TEST_F(Launch, ranks_know_who_they_are_and_their_lines_are_told_apart) {
  const auto r = sh(3,
                    "echo I am $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR; echo to err "
                    ">&2; echo $MASTER_PORT >$D/port.$RANK; printf 'no end'");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(lines(r.out),
            (std::multiset<std::string>{
                "[rank 0] I am 0 of 3, 0 of 3 at 127.0.0.1", "[rank 1] I am 1 of 3, 1 of 3 at 127.0.0.1",
                "[rank 2] I am 2 of 3, 2 of 3 at 127.0.0.1", "[rank 0] no end", "[rank 1] no end", "[rank 2] no end"}));
  EXPECT_EQ(lines(r.err), (std::multiset<std::string>{"[rank 0] to err", "[rank 1] to err", "[rank 2] to err"}));
  std::set<std::string> ports;
  for (const char* name : {"port.0", "port.1", "port.2"}) ports.insert(io::read_file(folder / name));
  EXPECT_EQ(ports.size(), 1u);
  EXPECT_GT(std::stoi(*ports.begin()), 1023);
}

TEST_F(Launch, ranks_of_one_start_share_a_secret) {
  std::set<std::string> all;
  for (int start = 0; start < 2; ++start) {
    const auto r = sh(2, "echo $HPCDL_SECRET");
    EXPECT_EQ(r.code, 0) << r.err;
    std::set<std::string> of_start;
    for (const auto& line : lines(r.out)) of_start.insert(line.substr(line.find(']') + 1));
    ASSERT_EQ(of_start.size(), 1u) << r.out;
    EXPECT_EQ(of_start.begin()->size(), 65u) << r.out;
    all.insert(*of_start.begin());
  }
  EXPECT_EQ(all.size(), 2u);
}

TEST_F(Launch, starts_hpcdl_itself) {
  const auto r = run({"launch", "-n", "2", "--", "--version"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(lines(r.out).count(r.out.substr(0, r.out.find('\n'))), 1u);
  EXPECT_NE(r.out.find("[rank 1] hpcdl "), std::string::npos) << r.out;
}

TEST_F(Launch, plain_leaves_rank_0s_output_as_it_is) {
  const auto r = sh(2, "echo \"{\\\"rank\\\": $RANK}\"", {"--plain"});
  EXPECT_EQ(r.json()["rank"], 0);
  EXPECT_NE(r.err.find("[rank 1] {\"rank\": 1}"), std::string::npos) << r.err;
}

TEST_F(Launch, exit_codes) {
  EXPECT_EQ(sh(3, "exit 0").code, 0);
  for (const int code : {2, 70, 71, 9}) {
    const auto r = sh(3, "[ $RANK = 1 ] && exit " + std::to_string(code) + "; exec sleep 60", {"--grace", "0.2"});
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find("rank 1 ended with code " + std::to_string(code)), std::string::npos) << r.err;
  }
  EXPECT_EQ(sh(3, "exit 75").code, 75);
  EXPECT_EQ(sh(3, "[ $RANK = 1 ] && exit 75; exit 0").code, 75);
  EXPECT_EQ(sh(2, "[ $RANK = 1 ] && exit 75; sleep 0.3; exit 71").code, 71);
  // An error of a rank's own counts, though one that only heard of it left earlier.
  const auto heard = sh(2, "[ $RANK = 0 ] && exit 71; sleep 0.3; exit 70", {"--max-restarts", "1"});
  EXPECT_EQ(heard.code, 70) << heard.err;
  EXPECT_NE(heard.err.find("hpcdl: [launch] rank 1 ended with code 70\n"), std::string::npos) << heard.err;
  EXPECT_EQ(heard.err.find("restart 1"), std::string::npos) << heard.err;
  const auto killed = sh(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 60", {"--grace", "0.2"});
  EXPECT_EQ(killed.code, 71) << killed.err;
  EXPECT_NE(killed.err.find("rank 1 was killed by signal 9"), std::string::npos) << killed.err;
}

TEST_F(Launch, lost_ranks_are_started_again_and_nothing_else_is) {
  const std::string lost_twice =
      "if [ $RANK = 1 ]; then echo x >>$D/tries; [ $(wc -l <$D/tries) -lt 3 ] && kill -9 $$; fi; [ $RANK = 0 ] && echo "
      "$TORCHELASTIC_RESTART_COUNT; exit 0";
  const auto good = sh(2, lost_twice, {"--max-restarts", "2", "--grace", "5"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(lines(good.out), (std::multiset<std::string>{"[rank 0] 0", "[rank 0] 1", "[rank 0] 2"}));
  EXPECT_NE(good.err.find("restart 2 of 2, from the last checkpoint"), std::string::npos) << good.err;
  fs::remove(folder / "tries");
  EXPECT_EQ(sh(2, lost_twice, {"--max-restarts", "1", "--grace", "5"}).code, 71);
  for (const int code : {2, 70, 75}) {
    fs::remove(folder / "count");
    EXPECT_EQ(sh(1, "echo x >>$D/count; exit " + std::to_string(code), {"--max-restarts", "3"}).code, code);
    EXPECT_EQ(fs::file_size(folder / "count"), 2u) << code;
  }
  fs::remove(folder / "count");
  EXPECT_EQ(sh(1, "echo x >>$D/count; exit 71", {"--max-restarts", "3"}).code, 71);
  EXPECT_EQ(fs::file_size(folder / "count"), 8u);
}

TEST_F(Launch, signals_go_to_all_ranks) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {  // of SIGHUP ranks know nothing
    Program p(words(2, "trap 'exit 75' TERM USR1 INT; touch $D/ready.$RANK; while :; do sleep 0.05; done",
                    {"--max-restarts", "3"}));
    ASSERT_TRUE(there("ready.0") && there("ready.1"));
    kill(p.pid(), signal);
    const auto r = p.wait();
    EXPECT_EQ(r.code, 75) << r.err;
    fs::remove(folder / "ready.0"), fs::remove(folder / "ready.1");
  }
}

TEST_F(Launch, ends_by_the_interrupt_that_ended_its_ranks) {  // a script around it stops, and takes nothing for a loss
  Program p(words(2, "touch $D/ready.$RANK; while :; do sleep 0.05; done", {"--max-restarts", "3"}));
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  kill(p.pid(), SIGINT);
  const auto r = p.wait();
  EXPECT_EQ(r.code, 128 + SIGINT) << r.err;
  EXPECT_EQ(r.err.find("killed"), std::string::npos) << r.err;
}

/// Rank 1 never comes to train. Rank 0 would wait for it for minutes.
TEST_F(Launch, a_signal_ends_ranks_that_wait_for_each_other) {
  const std::string script =
      "[ $RANK = 0 ] && exec '" HPCDL_PROGRAM
      "' train --out $D/run --dist.method file://$D/meet --dist.init_timeout 60; trap 'exit 75' TERM; touch $D/ready; "
      "while :; do sleep 0.05; done";
  Program p(words(2, script));
  const auto waits = [&] {
    const auto all = io::list_folder(folder.path());
    return std::any_of(all.begin(), all.end(), [](const fs::path& f) {
      const auto name = f.filename().string();
      return name.starts_with("meet.") && name.find(".new.") == name.npos;
    });
  };
  ASSERT_TRUE(there("ready") && comes_true(waits));
  kill(p.pid(), SIGTERM);
  const auto r = p.wait();
  EXPECT_EQ(r.code, 75) << r.err;
  EXPECT_NE(r.err.find("asked to stop before all ranks had come"), std::string::npos) << r.err;
  EXPECT_FALSE(waits()) << "the file by which ranks meet is left behind";
}

TEST_F(Launch, a_third_signal_kills) {
  Program p(words(2, "trap '' TERM; touch $D/ready.$RANK; while :; do sleep 0.05; done"));
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  for (int i = 0; i < 3; ++i) kill(p.pid(), SIGTERM), std::this_thread::sleep_for(100ms);
  EXPECT_EQ(p.wait().code, 71);
}

TEST_F(Launch, a_signal_that_comes_twice_at_once_is_passed_on_once) {  // timeout(1) asks the process and its group
  for (bool at_once = false; !at_once;) {
    Program p(
        words(2,
              "trap 'echo x >>$D/asked.$RANK' TERM; touch $D/ready.$RANK; while [ ! -s $D/asked.$RANK ]; do sleep "
              "0.01; done; sleep 0.6; exit 75"));
    ASSERT_TRUE(there("ready.0") && there("ready.1"));
    const auto start = std::chrono::steady_clock::now();
    kill(p.pid(), SIGTERM);
    ASSERT_TRUE(there("asked.0") && there("asked.1"));
    kill(p.pid(), SIGTERM);
    at_once = std::chrono::steady_clock::now() - start < 200ms;  // by a machine that had time for it
    const auto r = p.wait();
    for (const char* rank : {"0", "1"}) {
      if (at_once) {
        EXPECT_EQ(io::read_file(folder / (std::string("asked.") + rank)), "x\n") << r.err;
      }
      fs::remove(folder / (std::string("asked.") + rank)), fs::remove(folder / (std::string("ready.") + rank));
    }
  }
}

TEST_F(Launch, a_rank_that_never_stops_writing_keeps_no_signal_from_being_heard) {
  Program p(words(2, "touch $D/ready.$RANK; exec yes", {"--grace", "0.3"}), "/dev/null", "/dev/null");
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  std::this_thread::sleep_for(300ms);
  kill(p.pid(), SIGTERM);
  EXPECT_TRUE(comes_true([&] { return ended(p.pid()); }));
  kill(p.pid(), SIGKILL);
  EXPECT_EQ(p.wait().code, 71);
}

TEST_F(Launch, lines_that_are_lost_are_told) {
  const auto r = run({"launch", "-n", "2", "--program", "/bin/echo", "--", "words"}, "/dev/null", "/dev/full");
  EXPECT_EQ(r.code, 70);
  EXPECT_NE(r.err.find("lines of the ranks could not be written: No space left"), std::string::npos) << r.err;
  EXPECT_EQ(run({"launch", "-n", "2", "--program", "false"}, "/dev/null", "/dev/full").code, 1);
}

TEST_F(Launch, once_a_signal_has_ended_one_rank_the_others_do_not_stay_for_ever) {
  Program p(words(2, "[ $RANK = 1 ] && trap '' TERM; touch $D/ready.$RANK; while :; do sleep 0.05; done",
                  {"--grace", "0.3"}));
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  kill(p.pid(), SIGTERM);
  const auto r = p.wait();
  EXPECT_EQ(r.code, 71) << r.err;
  EXPECT_NE(r.err.find("rank 0 was killed by signal 15"), std::string::npos) << r.err;
}

TEST_F(Launch, a_program_needs_no_words) {
  const auto r = run({"launch", "-n", "2", "--program", "pwd"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(lines(r.out).size(), 2u) << r.out;
}

TEST_F(Launch, ranks_of_hpcdl_bear_its_name) {  // for ps, top and pkill
  const auto r = run({"launch", "-n", "1", "--", "launch", "-n", "1", "--program", "/bin/sh", "--", "-c",
                      "cat /proc/$PPID/comm; tr '\\0' ' ' </proc/$PPID/cmdline | cut -d ' ' -f 1"});
  EXPECT_EQ(r.out, "[rank 0] [rank 0] hpcdl\n[rank 0] [rank 0] hpcdl\n") << r.err;
}

TEST_F(Launch, ends_what_it_started_and_nothing_else) {
  const pid_t bystander = fork();
  if (bystander == 0) {
    pause();
    _exit(0);
  }
  // Rank 0 ignores SIGTERM and starts another process; rank 2 has ended well and left one behind.
  const auto r = sh(3,
                    "case $RANK in 0) trap '' TERM; sleep 600 & echo $! >$D/child; while :; do sleep 0.05; done;; 1) "
                    "while [ ! -s $D/child ] || [ ! -s $D/left ]; do sleep 0.05; done; exit 70;;"
                    " 2) sleep 600 >/dev/null 2>&1 & echo $! >$D/left;; esac",
                    {"--grace", "0.3"});
  EXPECT_EQ(r.code, 70) << r.err;
  for (const char* name : {"child", "left"}) {
    const pid_t pid = pid_in(folder / name);
    EXPECT_TRUE(comes_true([&] { return ended(pid); })) << name;
  }
  EXPECT_FALSE(ended(bystander));
  kill(bystander, SIGKILL);
  waitpid(bystander, nullptr, 0);
}

TEST_F(Launch, killed_itself_it_leaves_nothing_behind) {
  Program p(words(2, "echo $$ >$D/pid.$RANK; exec sleep 600"));
  const pid_t ranks[] = {pid_in(folder / "pid.0"), pid_in(folder / "pid.1")};
  kill(p.pid(), SIGKILL);
  p.wait();
  for (const pid_t pid : ranks) EXPECT_TRUE(comes_true([&] { return ended(pid); }));
}

TEST_F(Launch, much_output_arrives_whole) {
  const auto r = sh(2,
                    "i=0; while [ $i -lt 3000 ]; do echo \"line $i "
                    "....................................................................\"; i=$((i+1)); done; head -c "
                    "200000 /dev/zero | tr '\\0' x");
  EXPECT_EQ(r.code, 0);
  for (const char* rank : {"0", "1"})
    for (const int i : {0, 1500, 2999})
      EXPECT_NE(r.out.find(fmt::format("[rank {}] line {} ...", rank, i)), std::string::npos);
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), 'x'), 400000);
  for (const auto& line : lines(r.out)) EXPECT_TRUE(line.starts_with("[rank ")) << line.substr(0, 80);
}

TEST_F(Launch, what_the_system_refuses_is_told_as_it_says) {
  const auto err = (folder / "err").string();
  const int status = std::system(
      fmt::format("ulimit -n 40; exec '{}' launch -n 40 --program sleep -- 60 2>'{}'", HPCDL_PROGRAM, err).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 70);
  EXPECT_NE(io::read_file(err).find("cannot make a pipe: Too many open files"), std::string::npos)
      << io::read_file(err);
}

TEST_F(Launch, what_makes_no_sense_is_refused) {
  EXPECT_EQ(run({"launch", "-n", "2"}).code, 2);
  EXPECT_EQ(run({"launch", "--", "train"}).code, 2);
  EXPECT_EQ(run({"launch", "-n", "0", "--", "train"}).code, 2);
  const auto missing = run({"launch", "-n", "2", "--program", "/no/such/program", "--", "x"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("cannot run /no/such/program"), std::string::npos) << missing.err;
  setenv("RANK", "0", 1), setenv("WORLD_SIZE", "4", 1);
  const auto nested = run({"launch", "-n", "2", "--", "train"});
  unsetenv("RANK"), unsetenv("WORLD_SIZE");
  EXPECT_EQ(nested.code, 2);
  EXPECT_NE(nested.err.find("rank 0 of 4, told by torchrun"), std::string::npos) << nested.err;
}

/// As in `hpcdl launch ... | less`: nobody reads, the pipe is full, and the ranks are to end all the same.
TEST_F(Launch, signals_go_to_the_ranks_while_nobody_takes_their_lines) {
  const auto fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  Program p(words(2, "echo $$ > $D/pid$RANK; exec yes"), "/dev/null", fifo.string());
  const pid_t ranks[] = {pid_in(folder / "pid0"), pid_in(folder / "pid1")};
  EXPECT_TRUE(comes_true([&] {
    int before = 0, after = 0;
    ioctl(reader, FIONREAD, &before);
    std::this_thread::sleep_for(300ms);
    ioctl(reader, FIONREAD, &after);
    return before > 0 && before == after;
  })) << "the pipe is full";
  kill(p.pid(), SIGTERM);
  EXPECT_TRUE(comes_true([&] { return ended(ranks[0]) && ended(ranks[1]); }));
  close(reader);
  fs::remove(fifo), std::ofstream(fifo).close();
  const auto r = p.wait();
  EXPECT_NE(r.err.find("Terminated passed on to the ranks"), std::string::npos) << r.err;
  EXPECT_EQ(r.code, 71);
}

}  // namespace
}  // namespace hpcdl::cli_test
