// hpcdl slurm: what is in the script, and what the script does, with stand-ins for srun and scontrol. The real Slurm:
// tests/slurm.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

struct Slurm : testing::Test {
  std::string config(const std::string& more) const {
    const auto path = (folder / "run.toml").string();
    std::ofstream(path) << "output = \"/tmp/run\"\n[model]\nfamily = \"gpt2\"\n" << more;
    return path;
  }
  void tool(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << "#!/bin/sh\n" << text;
    fs::permissions(folder / name, fs::perms::owner_all);
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  io::TempFolder folder;
};

TEST_F(Slurm, numbers_come_from_parallel) {
  const auto c = config("[train]\ndevice = \"cuda\"\nthreads = 12\n[parallel]\ndp = 4\ntp = 4\n");
  const auto r = run({"slurm", "-c", c, "--nodes", "2", "--time", "01:30:00", "--partition", "gpu"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(
      has(r.out, "#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12 --time=01:30:00\n"))
      << r.out;
  EXPECT_TRUE(has(r.out, "#SBATCH --signal=TERM@300 --requeue --open-mode=append\n"));
  EXPECT_TRUE(has(r.out, "#SBATCH --partition=gpu\n"));
  EXPECT_TRUE(has(r.out, "hpcdl train -c " + c + " --checkpoint.resume=auto\n"));
  const auto by_tasks = run({"slurm", "-c", c, "--ntasks-per-node", "4"});
  EXPECT_TRUE(has(by_tasks.out, "--nodes=4 --ntasks-per-node=4")) << by_tasks.out;
  const auto overridden = run({"slurm", "-c", c, "--parallel.dp=2", "--train.device=cpu", "--train.lr", "0.1"});
  EXPECT_TRUE(has(overridden.out, "--nodes=1 --ntasks-per-node=8 --cpus-per-task")) << overridden.out;
  EXPECT_TRUE(has(overridden.out, " --parallel.dp=2 --train.device=cpu --train.lr=0.1 "));
}

TEST_F(Slurm, a_checkpoint_to_begin_at_is_kept_and_its_price_told) {
  for (const bool in_file : {true, false}) {
    const auto c = config(in_file ? "[checkpoint]\nresume = \"base/step_7\"\n" : "");
    std::vector<std::string> words{"slurm", "-c", c};
    if (!in_file) words.push_back("--checkpoint.resume=base/step_7");
    const auto r = run(words);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_FALSE(has(r.out, "--checkpoint.resume=auto")) << r.out;
    EXPECT_TRUE(has(r.err, "\"base/step_7\": a requeued job begins at that checkpoint again")) << r.err;
  }
}

TEST_F(Slurm, what_does_not_fit_is_refused) {
  const auto c = config("[parallel]\ndp = 4\ntp = 2\n");
  const auto r = run({"slurm", "-c", c, "--nodes", "3"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "1 * 4 * 1 * 2 = 8")) << r.err;
  EXPECT_EQ(run({"slurm", "-c", c, "--nodes", "2", "--ntasks-per-node", "2"}).code, 2);
  EXPECT_EQ(run({"slurm"}).code, 2);
  EXPECT_EQ(run({"slurm", "-c", c, "--job-name", "two words"}).code, 2);
  EXPECT_EQ(run({"slurm", "-c", c, "--no.such.key=1"}).code, 2);
  const auto open = config("");
  EXPECT_TRUE(
      has(run({"slurm", "-c", open, "--nodes", "2", "--ntasks-per-node", "8"}).out, "--nodes=2 --ntasks-per-node=8"));
}

/// As in README.
TEST_F(Slurm, the_configs_that_are_shipped_work_as_they_are) {
  for (const char* name : {"text.toml", "cifar10.toml"}) {
    const auto c = std::string(HPCDL_SOURCE_DIR "/examples/") + name;
    const auto r = run({"slurm", "-c", c, "--nodes", "2"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(has(r.out, "#SBATCH --nodes=2 --ntasks-per-node=1 --time=04:00:00\n")) << r.out;
    EXPECT_TRUE(has(r.err, "1 rank on each node; --ntasks-per-node")) << r.err;
    EXPECT_TRUE(has(r.out, "hpcdl train -c " + c + " --checkpoint.resume=auto\n")) << r.out;
    const auto gpus = run({"slurm", "-c", c, "--nodes", "2", "--gpus-per-node", "4", "--train.device=cuda"});
    EXPECT_TRUE(has(gpus.out, "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 ")) << gpus.out << gpus.err;
  }
}

TEST_F(Slurm, times_are_those_that_sbatch_takes_and_leave_time_to_train) {
  const auto c = config("[parallel]\ndp = 2\n");
  for (const char* time :
       {"90", "6:00", "999:59", "4:00:00", "99:59:59", "1-0", "400-23", "2-12:30", "1-23:59:59", "UNLIMITED"})
    EXPECT_TRUE(has(run({"slurm", "-c", c, "--time", time}).out, std::string(" --time=") + time + "\n")) << time;
  for (const char* time : {"foo", "10m", "1:2:3:4", "1-", ":30", "90:", "1--2", "-5", "4 h", "0", "1-1-1", "99:99:99",
                           "90:60", "4:60:00", "4:00:60", "1-24", "1-00:60", "1-23:59:60"}) {
    const auto r = run({"slurm", "-c", c, std::string("--time=") + time});
    EXPECT_EQ(r.code, 2) << time;
    EXPECT_TRUE(has(r.err, "expected minutes, M:S, H:M:S, DAYS-H")) << r.err;
  }
  // Minutes and seconds instead of hours and minutes: the job would save, be requeued and save for ever.
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"--time", "4:00"}, {"--time", "1:00:00", "--save-seconds", "3600"}}) {
    std::vector<std::string> all{"slurm", "-c", c};
    all.insert(all.end(), words.begin(), words.end());
    const auto r = run(all);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, "before its end (--save-seconds), that is before it begins")) << r.err;
  }
  EXPECT_TRUE(has(run({"slurm", "-c", c, "--log", "a b"}).err, "--log is \"a b\""));
}

TEST_F(Slurm, the_script_requeues_what_was_saved_and_nothing_else) {
  const auto at = folder.path().string();
  tool("srun", "for w in \"$@\"; do echo \"$w\" >>" + at + "/words; done\necho $HPCDL_SECRET >>" + at +
                   "/secrets\nexit $CODE\n");
  tool("scontrol", "echo \"$@\" >>" + at + "/asked\n");
  const auto c = config("[parallel]\ndp = 2\n");
  const auto r = run({"slurm", "-c", c, "--program", at + "/my program's", "--mpi", "pmix", "--data.text=a b$HOME"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::ofstream(folder / "job.sh") << r.out;
  for (const int code : {0, 2, 70, 71, 75}) {
    fs::remove(folder / "words"), fs::remove(folder / "asked");
    const int status =
        std::system(fmt::format("PATH={}:$PATH CODE={} SLURM_JOB_ID=17 bash {}/job.sh", at, code, at).c_str());
    EXPECT_EQ(WEXITSTATUS(status), code);
    EXPECT_EQ(fs::exists(folder / "asked"), code == 75);
    if (code == 75) {
      EXPECT_EQ(io::read_file(folder / "asked"), "requeue 17\n");
    }
  }
  // Each start has its own secret, unless the user has set one.
  std::istringstream secrets(io::read_file(folder / "secrets"));
  std::set<std::string> all;
  for (std::string secret; secrets >> secret;) {
    EXPECT_EQ(secret.size(), 64u) << secret;
    all.insert(secret);
  }
  EXPECT_EQ(all.size(), 5u);
  const auto words = io::read_file(folder / "words");
  EXPECT_TRUE(has(words, "\n" + at + "/my program's\ntrain\n-c\n" + c + "\n--data.text=a b$HOME\n")) << words;
}

TEST_F(Slurm, a_job_that_lost_a_rank_is_requeued_as_often_as_asked) {
  const auto at = folder.path().string();
  tool("srun", "exit $CODE\n");
  tool("scontrol", "echo \"$@\" >>" + at + "/asked\n");
  const auto r = run({"slurm", "-c", config("[parallel]\ndp = 2\n"), "--max-restarts", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::ofstream(folder / "job.sh") << r.out;
  const auto requeued = [&](int code) {
    fs::remove(folder / "asked");
    const int status = std::system(
        fmt::format("cd {0} && PATH={0}:$PATH CODE={1} SLURM_JOB_ID=17 bash {0}/job.sh 2>{0}/err", at, code).c_str());
    EXPECT_EQ(WEXITSTATUS(status), code);
    return fs::exists(folder / "asked");
  };
  EXPECT_TRUE(requeued(71));
  EXPECT_TRUE(has(io::read_file(folder / "err"), "a rank was lost (code 71); restart 1 of 2"));
  EXPECT_TRUE(requeued(75)) << "a run that was saved must not be counted";
  EXPECT_TRUE(requeued(137));  // killed, as srun reports it
  EXPECT_TRUE(requeued(75));
  EXPECT_FALSE(requeued(137));
  for (const int code : {0, 2, 70, 130, 143}) EXPECT_FALSE(requeued(code)) << code;
}

}  // namespace
}  // namespace hpcdl::cli_test
