#include "hpcdl/comm/bootstrap/place.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {
namespace {

Environment joined(Environment a, const Environment& b) {
  for (const auto& [k, v] : b) a[k] = v;
  return a;
}

std::string error(const Environment& env, const PlaceOptions& options = {}) {
  try {
    find_place(env, options);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

const Environment kTorch{{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "10.0.0.1"},
                         {"MASTER_PORT", "29501"}};
const Environment kSlurm{{"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "11"},
                         {"SLURM_STEP_NUM_TASKS", "16"},
                         {"SLURM_LOCALID", "3"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_NTASKS", "99"},
                         {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08]"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

void expect(const Place& p, int rank, int world, int local_rank, int local_world, const std::string& source) {
  EXPECT_EQ(p.rank, rank);
  EXPECT_EQ(p.world, world);
  EXPECT_EQ(p.local_rank, local_rank);
  EXPECT_EQ(p.local_world, local_world);
  EXPECT_EQ(p.source, source);
}

TEST(place, nothing_is_one_process) {
  const auto p = find_place({});
  expect(p, 0, 1, 0, 1, "single process");
  EXPECT_EQ(p.hint, "");
  EXPECT_EQ(describe(p), "rank 0 of 1 (0 of 1 here), told by single process");
}

TEST(place, every_launcher) {
  const auto t = find_place(kTorch);
  expect(t, 5, 8, 1, 4, "torchrun");
  EXPECT_EQ(t.master_host, "10.0.0.1");
  EXPECT_EQ(t.master_port, 29501);
  const auto s = find_place(kSlurm);
  expect(s, 11, 16, 3, 8, "Slurm");
  EXPECT_EQ(s.master_host, "gpu07");
  EXPECT_GE(s.master_port, 20000);
  ASSERT_EQ(s.hosts.size(), 16u);
  EXPECT_EQ(s.hosts[7], "gpu07");
  EXPECT_EQ(s.hosts[8], "gpu08");
  EXPECT_EQ(s.run_id, "slurm-77.0.0");
  expect(find_place(kOpenMpi), 1, 4, 1, 2, "Open MPI");
  expect(find_place({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}), 2, 3, -1, 0, "Hydra");
  expect(find_place({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}), 2, 3,
         0, 1, "Hydra");
  expect(find_place({{"MV2_COMM_WORLD_RANK", "2"},
                     {"MV2_COMM_WORLD_SIZE", "3"},
                     {"MV2_COMM_WORLD_LOCAL_RANK", "2"},
                     {"MV2_COMM_WORLD_LOCAL_SIZE", "3"}}),
         2, 3, 2, 3, "MVAPICH");
  expect(find_place({{"FLUX_TASK_RANK", "2"}, {"FLUX_JOB_SIZE", "3"}, {"FLUX_TASK_LOCAL_ID", "0"}}), 2, 3, 0, 0,
         "Flux");
  expect(find_place({{"PALS_RANKID", "2"}, {"PALS_LOCAL_RANKID", "1"}, {"PMI_SIZE", "3"}}), 2, 3, 1, 0, "PALS");
  const auto m =
      find_place({{"MLX_RANK", "1"}, {"MLX_WORLD_SIZE", "2"}, {"NCCL_HOST_IP", "10.0.0.9"}, {"NCCL_PORT", "1234"}});
  expect(m, 1, 2, -1, 0, "MLX");
  EXPECT_EQ(m.master_host, "10.0.0.9");
  EXPECT_EQ(m.master_port, 1234);
}

TEST(place, options_come_first) {
  const auto p = find_place(joined(kTorch, kSlurm),
                            {.rank = 1, .world = 2, .local_rank = 0, .local_world = 1, .master = "[::1]:80"});
  expect(p, 1, 2, 0, 1, "options");
  EXPECT_EQ(p.master_host, "::1");
  EXPECT_EQ(p.master_port, 80);
  EXPECT_EQ(p.ports, 1);
  EXPECT_NE(error({}, {.rank = 1}), "");
  EXPECT_NE(error({}, {.world = 2}), "");
  EXPECT_NE(error({}, {.rank = 2, .world = 2}), "");
  EXPECT_NE(error({}, {.rank = 1, .world = 2, .local_rank = 3, .local_world = 2}), "");
  EXPECT_EQ(find_place(kTorch, {.master = "h:1"}).master_host, "h");
}

TEST(place, a_shell_in_an_allocation_is_one_process_with_a_hint) {
  Environment shell{{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "a[1-2]"}};
  for (int kind = 0; kind < 3; ++kind) {
    if (kind == 1) shell["SLURM_PROCID"] = "0";                                                 // batch script
    if (kind == 2) shell["SLURM_STEP_ID"] = "4294967290", shell["SLURM_STEP_NUM_TASKS"] = "1";  // interactive step
    const auto p = find_place(shell);
    expect(p, 0, 1, 0, 1, "single process");
    EXPECT_NE(p.hint.find("srun"), std::string::npos) << p.hint;
  }
  EXPECT_EQ(
      find_place({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).source,
      "Slurm");
}

TEST(place, conflicts_name_both) {
  const auto e = error(joined(kTorch, kOpenMpi));
  EXPECT_NE(e.find("torchrun says rank 5 of 8"), std::string::npos) << e;
  EXPECT_NE(e.find("Open MPI says rank 1 of 4"), std::string::npos) << e;
  EXPECT_NE(error(joined(kSlurm, kOpenMpi)), "");
  EXPECT_NE(error(joined(kTorch, {{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}})), "");
}

TEST(place, those_that_agree_do_not_conflict) {
  expect(find_place(joined(kSlurm, {{"PMI_RANK", "11"}, {"PMI_SIZE", "16"}})), 11, 16, 3, 8, "Slurm");
}

TEST(place, a_launcher_may_start_launchers) {
  // srun --ntasks-per-node=1 torchrun ...
  const Environment one_per_node{{"SLURM_JOB_ID", "7"},
                                 {"SLURM_STEP_ID", "1"},
                                 {"SLURM_PROCID", "1"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"SLURM_LOCALID", "0"},
                                 {"SLURM_NODEID", "1"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  expect(find_place(joined(one_per_node, kTorch)), 5, 8, 1, 4, "torchrun");
  // mpirun in a batch script over two nodes starts its daemons with srun
  expect(find_place(joined(one_per_node, kOpenMpi)), 1, 4, 1, 2, "Open MPI");
  // srun --pty bash, then mpirun
  expect(find_place(joined(
             {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},
             kOpenMpi)),
         1, 4, 1, 2, "Open MPI");
}

TEST(place, the_agent_of_torchrun_keeps_its_port) {
  const auto p = find_place(joined(kTorch, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(p.master_port, 29502);
}

TEST(place, hpcdl_launch_speaks_as_torchrun_does) {
  expect(find_place(joined(kTorch, {{"TORCHELASTIC_RUN_ID", "hpcdl-17"}})), 5, 8, 1, 4, "hpcdl launch");
}

TEST(place, incomplete_sets_do_not_count) {
  const auto p = find_place({{"RANK", "3"}, {"OMPI_COMM_WORLD_RANK", "1"}});
  expect(p, 0, 1, 0, 1, "single process");
  EXPECT_NE(p.hint.find("WORLD_SIZE"), std::string::npos);
  expect(find_place(joined(kOpenMpi, {{"RANK", "3"}})), 1, 4, 1, 2, "Open MPI");
}

TEST(place, nonsense_is_an_error_that_names_the_variable) {
  for (const auto& [name, value] : Environment{{"RANK", "x"},
                                               {"WORLD_SIZE", "0"},
                                               {"WORLD_SIZE", "-1"},
                                               {"LOCAL_RANK", "1.5"},
                                               {"LOCAL_WORLD_SIZE", "99999999999"},
                                               {"MASTER_PORT", "70000"}}) {
    const auto e = error(joined(kTorch, {{name, value}}));
    EXPECT_NE(e.find(name), std::string::npos) << name << ": " << e;
  }
  EXPECT_NE(error(joined(kTorch, {{"RANK", "8"}})).find("ranks are 0 to 7"), std::string::npos);
  EXPECT_NE(error(joined(kTorch, {{"LOCAL_RANK", "4"}})), "");
  EXPECT_NE(error(joined(kSlurm, {{"SLURM_STEP_NODELIST", "a["}})), "");
  EXPECT_NE(error(joined(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "8(x"}})), "");
}

TEST(place, slurm_ports) {
  auto env = kSlurm;
  env["SLURM_STEP_RESV_PORTS"] = "12000-12003";
  EXPECT_EQ(find_place(env).master_port, 12000);
  auto other = kSlurm;
  other["SLURM_JOB_ID"] = "78";
  EXPECT_NE(find_place(other).master_port, find_place(kSlurm).master_port);
  auto one = kSlurm;
  one["SLURM_STEP_TASKS_PER_NODE"] = "16", one["SLURM_NODEID"] = "0", one["SLURM_STEP_NODELIST"] = "gpu07";
  EXPECT_EQ(find_place(one).master_host, "");  // one host: a free port
  EXPECT_TRUE(find_place(one).one_host());
}

TEST(place, devices) {
  Place p{.rank = 5,
          .world = 8,
          .local_rank = 1,
          .local_world = 4,
          .source = "torchrun",
          .master_host = {},
          .run_id = {},
          .hosts = {},
          .hint = {}};
  EXPECT_EQ(device_of(p, 4), 1);
  EXPECT_THROW(device_of(p, 1), UsageError);
  EXPECT_THROW(device_of(p, 0), UsageError);
  p.source = "Slurm";
  EXPECT_EQ(device_of(p, 1), 0);
}

TEST(place, addresses) {
  EXPECT_EQ(split_address("h:1"), (std::pair<std::string, int>("h", 1)));
  EXPECT_EQ(split_address("[fe80::1%eth0]:65535"), (std::pair<std::string, int>("fe80::1%eth0", 65535)));
  for (const char* bad : {"", "h", "h:", ":1", "h:65536", "h:-1", "h:1x", "[]:1", "h:99999999999999"})
    EXPECT_THROW(split_address(bad), UsageError) << bad;
}

}  // namespace
}  // namespace hpcdl::comm
