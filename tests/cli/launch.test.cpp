// hpcdl launch, with shells as ranks and real signals.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
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

#include "hpcdl/io/atomic_file.h"
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

/// Whether the process has ended; it may not have been waited for yet.
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
  // A rank's own error determines the code, even if a rank that only heard of it left earlier.
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
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {  // ranks do not handle SIGHUP
    Program p(words(2, "trap 'exit 75' TERM USR1 INT; touch $D/ready.$RANK; while :; do sleep 0.05; done",
                    {"--max-restarts", "3"}));
    ASSERT_TRUE(there("ready.0") && there("ready.1"));
    kill(p.pid(), signal);
    const auto r = p.wait();
    EXPECT_EQ(r.code, 75) << r.err;
    fs::remove(folder / "ready.0"), fs::remove(folder / "ready.1");
  }
}

TEST_F(Launch, ends_by_the_interrupt_that_ended_its_ranks) {  // a script around it stops and sees no failure
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
  EXPECT_NE(r.err.find("asked to stop before all ranks had connected"), std::string::npos) << r.err;
  EXPECT_FALSE(waits()) << "the rendezvous file was not removed";
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
    at_once = std::chrono::steady_clock::now() - start < 200ms;  // by a machine that was fast enough
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

/// The exit code of a program whose output cannot be read again.
int code_of(const Program& p) {
  int status = 0;
  waitpid(p.pid(), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The output is not read, and the pipe is full: signals still work, and the first one ends the ranks.
TEST_F(Launch, signals_are_passed_on_while_nobody_reads) {
  const auto fifo = (folder / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  Program p(words(2, "trap 'echo x >$D/asked.$RANK; exit 75' TERM; touch $D/ready.$RANK; while :; do echo words; done",
                  {"--grace", "0.5"}),
            "/dev/null", fifo);
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  std::this_thread::sleep_for(500ms);  // until the pipe is full
  kill(p.pid(), SIGTERM);
  // Ranks whose lines are not read block in echo; the others continue after the reader has come back.
  std::jthread late([&] {
    std::this_thread::sleep_for(1s);
    char block[4096];
    while (!ended(p.pid()))
      if (read(reader, block, sizeof block) <= 0) std::this_thread::sleep_for(1ms);
  });
  EXPECT_TRUE(comes_true([&] { return ended(p.pid()); }));
  late.join();
  EXPECT_TRUE(there("asked.0") && there("asked.1"));
  kill(p.pid(), SIGKILL);
  EXPECT_EQ(code_of(p), 75);
  close(reader);
}

TEST_F(Launch, a_third_signal_kills_while_nobody_reads) {
  const auto fifo = (folder / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  Program p(words(2, "trap '' TERM; touch $D/ready.$RANK; exec yes", {"--grace", "0.3"}), "/dev/null", fifo);
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  std::this_thread::sleep_for(500ms);
  for (int i = 0; i < 3; ++i) kill(p.pid(), SIGTERM), std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(comes_true([&] { return ended(p.pid()); }));
  kill(p.pid(), SIGKILL);
  EXPECT_EQ(code_of(p), 71);
  close(reader);
}

/// An "ssh" that runs the command here, logs how it was called, and fails for some hosts as ssh does.
struct Hosts : Launch {
  Hosts() {
    io::write_file_atomic(
        folder / "ssh",
        "#!/bin/sh\n"
        "D='" +
            folder.path().string() +
            "'\n"
            "echo \"$@\" >>$D/called\nhost=$1\nshift\necho $$ >$D/ssh.$host\n"
            "case $host in\n"
            "refuses) echo 'ssh: connect to host refuses port 22: Connection refused' >&2; exit 255;;\n"
            "other) echo 'hpcdl-agent 1 hpcdl 9.9, commit abc'; cat >/dev/null; exit 0;;\n"
            "old) echo 'hpcdl: unknown option --agent' >&2; exit 2;;\n"
            "chatty) echo 'Welcome to this host';;\n"
            "elsewhere) cd /; exec env -i PATH=\"$PATH\" HOME=/nowhere sh -c \"$*\";;\n"
            "esac\nexec sh -c \"$*\"\n");
    fs::permissions(folder / "ssh", fs::perms::owner_all);
  }
  std::vector<std::string> on(const std::string& hosts, int n, const std::string& script,
                              std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--hosts", hosts, "--ssh", (folder / "ssh").string()});
    return words(n, script, more);
  }
};

TEST_F(Hosts, ranks_know_who_they_are_and_their_lines_are_told_apart) {
  setenv("MINE", "a b'c", 1);
  const auto r =
      run(on("127.0.0.1,elsewhere,chatty", 2,
             "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK at $MASTER_ADDR, $MINE; "
             "echo err $RANK >&2; pwd >$D/pwd.$RANK; echo $HPCDL_SECRET >$D/secret.$RANK; echo $HOME "
             ">$D/home.$RANK; echo $MASTER_PORT >$D/port.$RANK; printf 'no end'"));
  unsetenv("MINE");
  EXPECT_EQ(r.code, 0) << r.err;
  std::multiset<std::string> out, err;
  for (int rank = 0; rank < 6; ++rank) {
    out.insert(fmt::format("[rank {0}] {0} of 6, {1} of 2, {2} at 127.0.0.1, a b'c", rank, rank % 2, rank / 2));
    out.insert(fmt::format("[rank {}] no end", rank));
    err.insert(fmt::format("[rank {0}] err {0}", rank));
    for (const char* name : {"pwd.", "secret.", "port."})
      EXPECT_EQ(io::read_file(folder / (name + std::to_string(rank))),
                io::read_file(folder / (name + std::string("0"))))
          << name << rank;
  }
  EXPECT_EQ(lines(r.out), out);
  EXPECT_EQ(lines(r.err), err);
  EXPECT_EQ(io::read_file(folder / "home.2"), "/nowhere\n") << "the home folder of that host's account";
  const auto secret = io::read_file(folder / "secret.0");
  EXPECT_EQ(secret.size(), 65u);
  EXPECT_EQ(io::read_file(folder / "called").find(secret.substr(0, 64)), std::string::npos)
      << "the secret was on a command line";
}

TEST_F(Hosts, exit_codes_and_restarts) {
  EXPECT_EQ(run(on("a,b", 2, "exit 0")).code, 0);
  for (const int code : {2, 70, 71, 9}) {
    const auto r =
        run(on("a,b", 2, "[ $RANK = 2 ] && exit " + std::to_string(code) + "; exec sleep 60", {"--grace", "0.2"}));
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(fmt::format("rank 2 ended with code {}", code)), std::string::npos) << r.err;
  }
  const auto killed = run(on("a,b", 1, "[ $RANK = 1 ] && kill -9 $$; exec sleep 60", {"--grace", "0.2"}));
  EXPECT_EQ(killed.code, 71) << killed.err;
  EXPECT_NE(killed.err.find("rank 1 was killed by signal 9"), std::string::npos) << killed.err;
  const auto again = run(on("a,b", 1, "echo x >>$D/tries.$RANK; [ $(wc -l <$D/tries.$RANK) -lt 2 ] && exit 71; exit 0",
                            {"--max-restarts", "1", "--grace", "5"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("restart 1 of 1"), std::string::npos) << again.err;
}

TEST_F(Hosts, signals_go_to_all_ranks_of_all_hosts) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    Program p(on("a,b", 2, "trap 'exit 75' TERM USR1 INT; touch $D/ready.$RANK; while :; do sleep 0.05; done"));
    for (const char* rank : {"0", "1", "2", "3"}) ASSERT_TRUE(there(std::string("ready.") + rank));
    kill(p.pid(), signal);
    const auto r = p.wait();
    EXPECT_EQ(r.code, 75) << r.err;
    for (const char* rank : {"0", "1", "2", "3"}) fs::remove(folder / (std::string("ready.") + rank));
  }
  Program p(on("a,b", 1, "trap '' TERM; touch $D/ready.$RANK; while :; do sleep 0.05; done"));
  ASSERT_TRUE(there("ready.0") && there("ready.1"));
  for (int i = 0; i < 3; ++i) kill(p.pid(), SIGTERM), std::this_thread::sleep_for(100ms);
  EXPECT_EQ(p.wait().code, 71);
}

TEST_F(Hosts, a_host_that_is_lost_is_named_and_leaves_no_rank_behind) {
  Program p(on("a,b", 1, "echo $$ >$D/pid.$RANK; exec sleep 600", {"--grace", "0.3"}));
  const pid_t ranks[] = {pid_in(folder / "pid.0"), pid_in(folder / "pid.1")};
  kill(pid_in(folder / "ssh.b"), SIGKILL);
  const auto r = p.wait();
  EXPECT_EQ(r.code, 71) << r.err;
  EXPECT_NE(r.err.find("host b was lost, with rank 1"), std::string::npos) << r.err;
  for (const pid_t pid : ranks) EXPECT_TRUE(comes_true([&] { return ended(pid); }));
}

TEST_F(Hosts, killed_itself_it_leaves_nothing_behind) {
  Program p(on("a,b", 1, "echo $$ >$D/pid.$RANK; exec sleep 600"));
  const pid_t ranks[] = {pid_in(folder / "pid.0"), pid_in(folder / "pid.1")};
  kill(p.pid(), SIGKILL);
  p.wait();
  for (const pid_t pid : ranks) EXPECT_TRUE(comes_true([&] { return ended(pid); }));
}

TEST_F(Hosts, what_is_wrong_with_a_host_is_said_before_anything_starts) {
  const auto error = [&](const std::string& hosts, std::vector<std::string> more = {}) {
    const auto r = run(on(hosts, 1, "touch $D/started", more));
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_FALSE(fs::exists(folder / "started"));
    return r.err;
  };
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(error("a,refuses"), "no connection to host refuses: ssh: connect to host refuses port 22: Connection refused");
  says(error("a,other"), "host other has another version of this program: hpcdl 9.9, commit abc there and hpcdl ");
  says(error("old,a"),
       "on host old is another version of this program, or another program: it ended with 2: hpcdl: unknown option");
  says(error("a", {"--there", "/no/such/hpcdl"}), "host a cannot run /no/such/hpcdl: ");
  says(error("a,-o"), "\"-o\" is not a host");
  const auto no_ssh = run({"launch", "-n", "1", "--hosts", "a", "--ssh", "/no/such/ssh -v", "--", "train"});
  EXPECT_EQ(no_ssh.code, 2);
  says(no_ssh.err, "cannot run /no/such/ssh: No such file or directory; --ssh names another command");
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
  // Rank 0 ignores SIGTERM and starts another process; rank 2 has ended normally, but left a process behind.
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

}  // namespace
}  // namespace hpcdl::cli_test
