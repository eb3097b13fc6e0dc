// hpcdl slurm: the batch script for a run, with as many tasks as its config has ranks.

#include <algorithm>
#include <tuple>

#include "cli/run_config.h"
#include "cli/verb.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::cli {

namespace {

struct SlurmOptions {
  std::vector<std::string> configs;
  std::string program = "hpcdl", job_name, partition, account, time = "04:00:00", mpi, output;
  std::int64_t nodes = 0, tasks_per_node = 0, cpus_per_task = 0, gpus_per_node = -1, save_seconds = 300,
               max_restarts = 0;
};

struct Shape {
  std::int64_t nodes, tasks_per_node;
};

/// Ranks of a node if neither the command nor parallel.dp says how many: one for each GPU that is asked for, else one.
std::int64_t open_share(const SlurmOptions& o, std::int64_t of_batch) {
  return std::max({o.gpus_per_node, of_batch, std::int64_t{1}});
}

std::string counted(std::int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

/// Nodes and tasks, from the options and [parallel].
Shape shape(const SlurmOptions& o, const train::ParallelConfig& p) {
  const std::int64_t of_batch = p.pp * p.cp * p.tp;  // ranks that have the same rows
  std::int64_t ranks = p.dp * of_batch;
  if (ranks == 0)
    ranks = std::max<std::int64_t>(o.nodes, 1) * (o.tasks_per_node > 0 ? o.tasks_per_node : open_share(o, of_batch));
  const Shape s{.nodes = o.nodes > 0            ? o.nodes
                         : o.tasks_per_node > 0 ? std::max<std::int64_t>(ranks / o.tasks_per_node, 1)
                                                : 1,
                .tasks_per_node = o.tasks_per_node > 0
                                      ? o.tasks_per_node
                                      : std::max<std::int64_t>(o.nodes > 0 ? ranks / o.nodes : ranks, 1)};
  if (s.nodes * s.tasks_per_node != ranks)
    fail_usage("slurm", "{} with {} each are {} in total, but parallel.pp * dp * cp * tp is {} * {} * {} * {} = {}",
               counted(s.nodes, "node"), counted(s.tasks_per_node, "task"), counted(s.nodes * s.tasks_per_node, "rank"),
               p.pp, p.dp, p.cp, p.tp, ranks);
  if (ranks % of_batch != 0)
    fail_usage("slurm", "{} ranks cannot be divided into groups of parallel.pp * cp * tp = {} * {} * {}", ranks, p.pp,
               p.cp, p.tp);
  return s;
}

/// A value of an #SBATCH line, which cannot be quoted.
const std::string& plain(const char* option, const std::string& value) {
  for (const char c : value)
    if (static_cast<unsigned char>(c) <= ' ' || c == '\'' || c == '"')
      fail_usage("slurm", "--{} is \"{}\": expected a value without spaces and quotes", option, value);
  return value;
}

/// Seconds of a time limit as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; no limit: 0. Only the first
/// number has no limit.
std::int64_t time_limit(const std::string& text) {
  if (text == "UNLIMITED" || text == "INFINITE") return 0;
  const auto bad = [&] {
    fail_usage("slurm",
               "--time is \"{}\": expected minutes, M:S, H:M:S, DAYS-H, DAYS-H:M or DAYS-H:M:S, such as 90, 04:00:00 "
               "or 1-12:00:00; after the first number, hours go up to 23, minutes and seconds up to 59",
               text);
  };
  std::string_view rest = text;
  const auto number = [&](char end) -> std::int64_t {  // up to `end`, or all of it
    constexpr std::size_t kDigits = 6;
    const auto digits = rest.substr(0, rest.find(end));
    if (digits.empty() || digits.size() > kDigits || digits.find_first_not_of("0123456789") != std::string::npos) bad();
    rest.remove_prefix(std::min(rest.size(), digits.size() + 1));
    return std::stoll(std::string(digits));
  };
  const bool days = rest.find('-') != std::string::npos;
  std::int64_t seconds = days ? number('-') * 86400 : 0;
  const auto colons = std::count(rest.begin(), rest.end(), ':');
  if (colons > 2 || text.ends_with(':') || text.ends_with('-')) bad();
  std::int64_t unit = days || colons == 2 ? 3600 : 60;
  for (auto i = colons; i >= 0; --i, unit /= 60) {
    const auto n = number(':');
    if ((days || i < colons) && n >= (unit == 3600 ? 24 : 60)) bad();
    seconds += n * unit;
  }
  if (seconds == 0) bad();
  return seconds;
}

void check_times(const SlurmOptions& o) {
  const auto limit = time_limit(o.time);
  if (limit > 0 && limit <= o.save_seconds)
    fail_usage("slurm",
               "--time {} is {} s, and the job has to save {} s before its end (--save-seconds), that is before it "
               "begins: give more time, or fewer --save-seconds",
               o.time, limit, o.save_seconds);
}

std::string sbatch_lines(const SlurmOptions& o, const Shape& s, bool gpu) {
  std::string text =
      fmt::format("#SBATCH --job-name={}\n", plain("job-name", o.job_name.empty() ? "hpcdl" : o.job_name));
  text += fmt::format("#SBATCH --nodes={} --ntasks-per-node={}", s.nodes, s.tasks_per_node);
  const auto gpus = o.gpus_per_node >= 0 ? o.gpus_per_node : gpu ? s.tasks_per_node : 0;
  if (gpus > 0) text += fmt::format(" --gpus-per-node={}", gpus);
  if (o.cpus_per_task > 0) text += fmt::format(" --cpus-per-task={}", o.cpus_per_task);
  text += fmt::format(" --time={}\n", o.time);
  for (const auto& [name, option, value] : {std::tuple{"partition", "partition", &o.partition},
                                            {"account", "account", &o.account},
                                            {"output", "log", &o.output}})
    if (!value->empty()) text += fmt::format("#SBATCH --{}={}\n", name, plain(option, *value));
  return text + fmt::format("#SBATCH --signal=TERM@{} --requeue --open-mode=append\n", o.save_seconds);
}

/// Slurm counts all starts together, so restarts after a lost rank are counted in a file.
std::string requeue_lines(const SlurmOptions& o) {
  std::string text = "if [ $code -eq 75 ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n";
  if (o.max_restarts == 0) return text;
  return text + fmt::format(
                    "# A rank was lost (71), or killed by a signal other than those that end a job (srun adds 128). "
                    "The run goes on "
                    "from its last checkpoint.\n"
                    "if [ $code -eq 71 ] || {{ [ $code -gt 128 ] && [ $code -ne 130 ] && [ $code -ne 143 ]; }}; then\n"
                    "  count=\"${{SLURM_SUBMIT_DIR:-.}}/.hpcdl-restarts-$SLURM_JOB_ID\"\n"
                    "  restarts=$(cat \"$count\" 2>/dev/null || echo 0)\n"
                    "  if [ \"$restarts\" -lt {0} ]; then\n"
                    "    echo $((restarts + 1)) >\"$count\"\n"
                    "    echo \"hpcdl: [slurm] a rank was lost (code $code); restart $((restarts + 1)) of {0}\" >&2\n"
                    "    scontrol requeue \"$SLURM_JOB_ID\"\n"
                    "    exit $code\n"
                    "  fi\n"
                    "fi\n"
                    "if [ $code -ne 75 ]; then rm -f \"${{SLURM_SUBMIT_DIR:-.}}/.hpcdl-restarts-$SLURM_JOB_ID\"; fi\n",
                    o.max_restarts);
}

/// `folder`: a checkpoint that the config says to begin at.
std::string script(const SlurmOptions& o, const Shape& s, bool gpu, bool folder,
                   const std::vector<std::string>& words) {
  std::string command = "srun --kill-on-bad-exit=0 --wait=60";
  if (o.cpus_per_task > 0) command += fmt::format(" --cpus-per-task={}", o.cpus_per_task);
  if (!o.mpi.empty()) command += " --mpi=" + quoted(o.mpi);
  command += " " + quoted(o.program) + " train";
  for (const auto& c : o.configs) command += " -c " + quoted(c);
  bool resume = folder;
  for (const auto& w : words) resume |= w.starts_with("--checkpoint.resume"), command += " " + quoted(w);
  if (!resume) command += " --checkpoint.resume=auto";
  return "#!/bin/bash\n" + sbatch_lines(o, s, gpu) +
         "\n"
         "# Slurm sends SIGTERM to the ranks (no \"B:\" above) before the time is up or when the job is pre-empted. "
         "They "
         "save and end with 75.\n"
         "# If a rank is lost, the others end with 71 within 30 s; --kill-on-bad-exit would kill them while they still "
         "save.\n"
         "# A secret that only the ranks of this job know, so that no other program on the network can join them.\n"
         "export HPCDL_SECRET=\"${HPCDL_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}\"\n" +
         command +
         "\n"
         "code=$?\n" +
         requeue_lines(o) + "exit $code\n";
}

int slurm_verb(SlurmOptions& o, const Command& sub) {
  if (o.configs.empty() && !sub.rest().empty()) refuse_keys("slurm", sub.rest().front(), sub);
  if (o.configs.empty()) fail_usage("slurm", "no config: give -c run.toml");
  train::RunConfig config;
  io::ConfigTable table = train::table_of(config);
  const std::vector<std::filesystem::path> files(o.configs.begin(), o.configs.end());
  const auto words = overrides(sub.rest());
  load(table, files, words, sub);
  const Shape s = shape(o, config.parallel);
  check_times(o);
  if (config.parallel.dp == 0 && o.tasks_per_node == 0 && o.nodes > 0)
    say("hpcdl: [slurm] {} on each node; --ntasks-per-node sets another number, --cpus-per-task the CPUs of each",
        s.tasks_per_node == 1 ? "1 rank" : fmt::format("{} ranks", s.tasks_per_node));
  if (config.parallel.tp > s.tasks_per_node)
    say("hpcdl: [slurm] parallel.tp = {} is more than the {} tasks of a node, so the collectives of every layer cross "
        "the network",
        config.parallel.tp, s.tasks_per_node);
  const auto& resume = config.checkpoint.resume;
  const bool folder = resume != "auto" && resume != "none";
  if (folder)
    say("hpcdl: [slurm] checkpoint.resume is \"{}\": a requeued job begins at that checkpoint again, not at the one "
        "that it saved itself; leave the key out as soon as the run has its own checkpoints",
        resume);
  if (o.cpus_per_task == 0) o.cpus_per_task = config.train.threads;
  if (config.output.empty())
    say("hpcdl: [slurm] output is not set: add --output=FOLDER at the end of the command, with a folder that all nodes "
        "see");
  print_text(script(o, s, config.train.device.starts_with("cuda"), folder, words));
  return exit_code::kDone;
}

}  // namespace

void add_slurm(const Command& program, Run& run) {
  add_verb<SlurmOptions>(
      program, run, "slurm",
      "Prints an sbatch script for a run: one task per rank, saved and requeued when its time is up",
      [](const Command& sub, SlurmOptions& o) {
        sub.option("-c,--config", o.configs, "TOML file of the run, as for hpcdl train; repeatable");
        sub.option("--nodes", o.nodes, "Nodes; default: ranks / tasks per node, or 1").range(1, 1 << 20);
        sub.option("--ntasks-per-node", o.tasks_per_node,
                   "Ranks per node; default: parallel.dp * cp * tp / nodes; if parallel.dp is 0: one per GPU of "
                   "--gpus-per-node, else one")
            .range(1, 1 << 20);
        sub.option("--cpus-per-task", o.cpus_per_task, "CPUs per rank; default: train.threads").range(1, 1 << 20);
        sub.option("--gpus-per-node", o.gpus_per_node, "GPUs per node; default: one per rank if train.device is cuda")
            .range(0, 1 << 20);
        sub.option("--time", o.time, "Time limit: minutes, H:M:S or DAYS-H:M:S").shows_default();
        sub.option("--save-seconds", o.save_seconds, "Seconds before the time limit at which the run saves and ends")
            .shows_default()
            .range(1, 65535);
        sub.option("--max-restarts", o.max_restarts,
                   "How many times the job is requeued after a rank was lost or killed")
            .shows_default()
            .range(0, 1000000);
        sub.option("--job-name", o.job_name, "Name of the job; default: hpcdl");
        sub.option("--partition", o.partition, "Partition");
        sub.option("--account", o.account, "Account");
        sub.option("--log", o.output, "File for the output of the job; see sbatch --output");
        sub.option("--mpi", o.mpi, "The --mpi option of srun, for example pmix; default: the ranks meet over TCP");
        sub.option("--program", o.program, "The program on the nodes").shows_default();
        sub.takes_rest();
        sub.footer(
            "All other options are passed to hpcdl train, and are used here as well: hpcdl slurm -c run.toml "
            "--parallel.tp=4 --output=run");
      },
      slurm_verb);
}

}  // namespace hpcdl::cli
