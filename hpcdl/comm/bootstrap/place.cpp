#include "hpcdl/comm/bootstrap/place.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <tuple>

#include "hpcdl/comm/bootstrap/node_list.h"
#include "hpcdl/core/error.h"

extern char** environ;

namespace hpcdl::comm {

namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kTorchPort = 29500;
constexpr int kTries = 16;  // ports
constexpr std::int64_t kFirstSpecialStep =
    0xfffffff0;  // Slurm numbers batch scripts, interactive shells and prologs from here on

/// The variables of one launcher. Null: it has no such variable.
struct Launcher {
  const char *name, *rank, *world, *local_rank, *local_world;
};
constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kOthers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr},
    {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", nullptr},
    {"MLX", "MLX_RANK", "MLX_WORLD_SIZE", nullptr, nullptr},
};

struct Claim {
  std::string source, variables;
  int rank = 0, world = 0, local_rank = -1, local_world = 0;

  bool agrees(const Claim& other) const { return rank == other.rank && world == other.world; }
  std::string text() const { return fmt::format("{} says rank {} of {} ({})", source, rank, world, variables); }
};

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  const std::string* text(const char* name) const {
    if (!name) return nullptr;
    const auto it = environment_.find(name);
    return it == environment_.end() || it->second.empty() ? nullptr : &it->second;
  }
  std::string text_or(const char* name, std::string otherwise) const {
    const auto* t = text(name);
    return t ? *t : std::move(otherwise);
  }
  std::optional<std::int64_t> number(const char* name, std::int64_t least, std::int64_t most) const {
    const auto* t = text(name);
    if (!t) return std::nullopt;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(t->data(), t->data() + t->size(), value);
    if (error != std::errc() || end != t->data() + t->size() || value < least || value > most)
      fail_usage("dist", "{} is \"{}\"; expected a number from {} to {}", name, *t, least, most);
    return value;
  }
  int small(const char* name, int least, int otherwise) const {
    return static_cast<int>(number(name, least, kMostRanks).value_or(otherwise));
  }

 private:
  const Environment& environment_;
};

void check(const Claim& c) {
  if (c.rank >= c.world) fail_usage("dist", "{}; ranks are 0 to {}", c.text(), c.world - 1);
  if (c.local_world > 0 && (c.local_rank >= c.local_world || c.local_world > c.world))
    fail_usage("dist", "{} says local rank {} of {} in a world of {}", c.source, c.local_rank, c.local_world, c.world);
}

std::optional<Claim> read(const Launcher& l, const Reader& env) {
  if (!env.text(l.rank) || !env.text(l.world)) return std::nullopt;
  Claim c{l.name, fmt::format("{}, {}", l.rank, l.world), env.small(l.rank, 0, 0), env.small(l.world, 1, 0)};
  c.local_rank = l.local_rank ? env.small(l.local_rank, 0, -1) : -1;
  c.local_world = l.local_world ? env.small(l.local_world, 1, 0) : 0;
  if (c.local_rank < 0) c.local_world = 0;
  return c;
}

struct SlurmStep {
  Claim claim;
  std::vector<std::string> nodes;
  std::vector<int> tasks;  // per node
};

/// True in a task of an `srun` step. A batch script and a shell of `salloc` have most of the variables too, but
/// no other ranks were started.
bool in_step(const Reader& env) {
  if (!env.text("SLURM_PROCID")) return false;
  if (env.small("SLURM_STEP_NUM_TASKS", 1, 0) > 1) return true;
  const auto step = env.number(env.text("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID", 0, INT64_MAX);
  return step && *step < kFirstSpecialStep;
}

std::optional<SlurmStep> read_slurm(const Reader& env) {
  if (!in_step(env)) return std::nullopt;
  const char* world = env.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  if (!env.text(world)) return std::nullopt;
  SlurmStep s{
      {"Slurm", fmt::format("SLURM_PROCID, {}", world), env.small("SLURM_PROCID", 0, 0), env.small(world, 1, 0)},
      {},
      {}};
  s.claim.local_rank = env.small("SLURM_LOCALID", 0, -1);
  if (const auto* list = env.text("SLURM_STEP_NODELIST")) s.nodes = expand_nodes(*list);
  else if (const auto* job = env.text("SLURM_JOB_NODELIST")) s.nodes = expand_nodes(*job);
  if (const auto* tasks = env.text("SLURM_STEP_TASKS_PER_NODE")) s.tasks = expand_counts(*tasks);
  const auto node = static_cast<std::size_t>(env.small("SLURM_NODEID", 0, 0));
  if (s.claim.local_rank >= 0 && node < s.tasks.size()) s.claim.local_world = s.tasks[node];
  return s;
}

/// Sources that contradict `chosen`, except launchers that started other launchers.
void check_others(const Claim& chosen, const std::vector<Claim>& all) {
  for (const auto& c : all)
    if (!c.agrees(chosen) && c.world != 1 && c.local_world != 1)
      fail_usage("dist", "{}, but {}: unset the variables of one of them, or give --dist.rank and --dist.world",
                 chosen.text(), c.text());
}

/// Slurm comes before MPI in the order, but if it started one process per node and those started more, the numbers of
/// MPI count.
const Claim& choose(const std::vector<Claim>& all) {
  const Claim& first = all.front();
  if (first.source == "Slurm")
    for (const auto& c : all)
      if (!c.agrees(first) && (first.local_world == 1 || first.world == 1) && c.world >= first.world) return c;
  return first;
}

/// The host of each rank: Slurm fills one node after the other, unless told otherwise.
std::vector<std::string> hosts_of_ranks(const SlurmStep& s, const Reader& env) {
  const auto order = env.text_or("SLURM_DISTRIBUTION", "block");
  if (s.nodes.size() != s.tasks.size() || !order.starts_with("block")) return {};
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < s.nodes.size(); ++i)
    hosts.insert(hosts.end(), static_cast<std::size_t>(s.tasks[i]), s.nodes[i]);
  if (hosts.size() != static_cast<std::size_t>(s.claim.world)) hosts.clear();
  return hosts;
}

void add_slurm_master(Place& p, const SlurmStep& s, const Reader& env) {
  const auto job = env.number("SLURM_JOB_ID", 0, INT64_MAX).value_or(0);
  const auto step = env.number(env.text("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID", 0, INT64_MAX).value_or(0);
  p.run_id = fmt::format("slurm-{}.{}.{}", job, step, env.text_or("SLURM_RESTART_COUNT", "0"));
  p.hosts = hosts_of_ranks(s, env);
  if (s.nodes.empty() || p.one_host()) return;
  p.master_host = s.nodes.front();
  const auto* reserved = env.text("SLURM_STEP_RESV_PORTS");
  const auto dash = reserved ? reserved->find_first_of("-,") : std::string::npos;
  if (reserved) p.master_port = split_address("x:" + reserved->substr(0, dash)).second;
  else
    p.master_port = 20000 + static_cast<int>((job * 31 + step) % 10000),
    p.ports = kTries;  // below the ephemeral ports of systems
}

void add_master(Place& p, const Reader& env, const std::optional<SlurmStep>& slurm) {
  if (p.source == "Slurm") add_slurm_master(p, *slurm, env);
  if (const auto* host = env.text("MASTER_ADDR"); host && p.source != "single process") {
    p.master_host = *host;
    p.master_port = static_cast<int>(env.number("MASTER_PORT", 1, 65535).value_or(kTorchPort));
    p.ports = kTries;
    // The agent of torchrun listens at the port that it gives, because its workers use that store.
    if (env.text_or("TORCHELASTIC_USE_AGENT_STORE", "") == "True") ++p.master_port, --p.ports;
  }
  if (p.source == "torchrun")
    p.run_id = fmt::format("torchrun-{}.{}.{}", env.text_or("TORCHELASTIC_RUN_ID", "none"),
                           env.text_or("TORCHELASTIC_RESTART_COUNT", "0"), p.master_port);
  if (p.source == "Open MPI")
    p.run_id = "mpi-" + env.text_or("PMIX_NAMESPACE", env.text_or("OMPI_MCA_ess_base_jobid", ""));
  if (p.run_id == "mpi-") p.run_id.clear();
  if (p.source == "Flux") p.run_id = "flux-" + env.text_or("FLUX_JOB_ID", "");
  if (p.source == "MLX" && env.text("NCCL_HOST_IP")) {
    p.master_host = *env.text("NCCL_HOST_IP");
    p.master_port = static_cast<int>(env.number("NCCL_PORT", 1, 65535).value_or(kTorchPort));
    p.ports = kTries;
  }
}

std::string hint(const Reader& env) {
  if (const auto* job = env.text("SLURM_JOB_ID"))
    return fmt::format(
        "this process belongs to Slurm job {}, but not to a task of a step, so it runs alone; start all ranks with "
        "`srun hpcdl ...`",
        *job);
  for (const auto& [one, other] :
       {std::pair{"RANK", "WORLD_SIZE"}, {"PALS_RANKID", "PMI_SIZE"}, {"MLX_RANK", "MLX_WORLD_SIZE"}})
    if (env.text(one) && !env.text(other))
      return fmt::format("{} is set, but {} is not: this process runs alone", one, other);
  return "";
}

Place from_options(const PlaceOptions& o) {
  if (o.rank < 0 || o.world < 1)
    fail_usage("dist", "expected both dist.rank and dist.world, or neither; got rank {} and world {}", o.rank, o.world);
  Claim c{"options", "dist.rank, dist.world", o.rank, o.world, o.local_rank, o.local_world};
  check(c);
  Place p;
  p.rank = c.rank, p.world = c.world, p.local_rank = c.local_rank, p.local_world = c.local_rank < 0 ? 0 : c.local_world,
  p.source = "options";
  if (p.world == 1) p.local_rank = 0, p.local_world = 1;
  return p;
}

Place from_environment(const Reader& env) {
  std::vector<Claim> all;
  const auto slurm = read_slurm(env);
  if (auto c = read(kTorchrun, env)) all.push_back(*c);
  if (slurm) all.push_back(slurm->claim);
  for (const auto& l : kOthers)
    if (auto c = read(l, env)) all.push_back(*c);
  Place p;
  if (all.empty()) {
    p.hint = hint(env);
    return p;
  }
  const Claim& c = choose(all);
  check(c);
  check_others(c, all);
  p.rank = c.rank, p.world = c.world, p.local_rank = c.local_rank, p.local_world = c.local_world, p.source = c.source;
  if (p.world == 1) p.local_rank = 0, p.local_world = 1;
  add_master(p, env, slurm);
  if (p.source == "torchrun" && env.text_or("TORCHELASTIC_RUN_ID", "").starts_with("hpcdl-")) p.source = "hpcdl launch";
  return p;
}

}  // namespace

Environment process_environment() {
  Environment all;
  for (char** e = environ; e && *e; ++e) {
    const std::string_view line(*e);
    const auto equals = line.find('=');
    if (equals != std::string_view::npos) all.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return all;
}

std::pair<std::string, int> split_address(std::string_view text) {
  const auto colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  int port = -1;
  const auto digits = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || digits.empty() || error != std::errc() || end != digits.data() + digits.size() || port < 0 ||
      port > 65535)
    fail_usage("dist", "\"{}\" is not an address: expected HOST:PORT with a port up to 65535", text);
  return {std::string(host), port};
}

Place find_place(const Environment& environment, const PlaceOptions& options) {
  const Reader env(environment);
  Place p = options.rank >= 0 || options.world > 0 ? from_options(options) : from_environment(env);
  if (options.local_rank >= 0) p.local_rank = options.local_rank;
  if (options.local_world > 0) p.local_world = options.local_world;
  if (p.local_world > 0 && p.local_rank >= p.local_world)
    fail_usage("dist", "local rank {} of {}: local ranks are 0 to {}", p.local_rank, p.local_world, p.local_world - 1);
  if (!options.master.empty()) {
    std::tie(p.master_host, p.master_port) = split_address(options.master);
    p.ports = 1;
  }
  return p;
}

std::string describe(const Place& p) {
  const auto here = p.local_rank < 0    ? std::string()
                    : p.local_world < 1 ? fmt::format(" ({} here)", p.local_rank)
                                        : fmt::format(" ({} of {} here)", p.local_rank, p.local_world);
  return fmt::format("rank {} of {}{}, told by {}", p.rank, p.world, here, p.source);
}

int device_of(const Place& p, int visible) {
  if (visible < 1)
    fail_usage("dist", "rank {} sees no GPU: ask the scheduler for one per task, or train on the CPU", p.rank);
  if (visible == 1 && (p.source == "Slurm" || p.source == "Flux" || p.source == "PALS")) return 0;
  if (p.local_rank >= visible)
    fail_usage("dist",
               "rank {} is number {} on its host, but sees {} GPUs: start at most as many ranks as there are GPUs",
               p.rank, p.local_rank, visible);
  return std::max(p.local_rank, 0);
}

}  // namespace hpcdl::comm
