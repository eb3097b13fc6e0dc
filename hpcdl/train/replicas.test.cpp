#include "hpcdl/train/replicas.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::train {
namespace {

/// The tensors of a rank: two weights and a state, (4, 3) each; the first one may be a part of (8, 3).
struct Held {
  std::vector<float> memory = std::vector<float>(3 * 16);
  io::CheckpointContent content;

  Held(int part, bool turned) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
    const Spec spec{{4, 3}, DType::f32};
    Part held;
    if (part >= 0) held = Part::along({8, 3}, 0, std::array{Interval{4 * part, 4 * part + 4}});
    if (part > 0) memory[0] = 99;  // another part has different contents
    const Tensor second = turned ? Tensor(at(1), spec, Shape{1, 4}, Device{}) : Tensor(at(1), spec);
    content.model = {{"first", Tensor(at(0), spec), held}, {"second", second}};
    content.optimizer = {{"mean.second", Tensor(at(2), spec)}};
  }
  float* at(int tensor) { return memory.data() + 16 * tensor; }
};

/// Both ways of the check; `later`: as the threads of an asynchronous save make it, for which some tensors stay.
void check(const parallel::Mesh& mesh, Held& held, bool later) {
  const char* outcome = "step 4 is not saved";
  if (!later) return expect_equal_replicas(mesh, held.content, outcome);
  check_replicas_later(mesh, held.content, [&](const auto& t) { return t.name == "second"; }, outcome);
  held.at(0)[5] = -7;  // the run goes on
  EXPECT_EQ(bool(held.content.facts), mesh.world().size() > 1);
  if (held.content.facts) held.content.accept(io::GroupRanks(mesh.world()).gather(held.content.facts()));
}

/// The reports of the ranks of a dp x tp mesh, one of which has one element changed.
std::vector<std::string> errors_of(int dp, int tp, int odd, int tensor, bool turned = false) {
  const auto errors = [&](bool later) {
    return testing::rank_errors(dp * tp, [&](const comm::Group& world) {
      const parallel::Mesh mesh(world, {.dp = dp, .tp = tp});
      Held held(tp > 1 ? mesh.index(parallel::MeshAxis::tp) : -1, turned);
      if (world.rank() == odd) held.at(tensor)[7] += 1;
      try {
        check(mesh, held, later);
      } catch (const Error&) {
        parallel::any_rank(world, false);  // a rank that leaves at once would look lost to those that still read
        throw;
      }
    });
  };
  auto all = errors(false);
  EXPECT_EQ(errors(true), all);
  return all;
}

TEST(replicas, equal_ones_are_saved) {
  for (const auto& [dp, tp] : {std::pair(1, 1), std::pair(3, 1), std::pair(1, 2), std::pair(2, 2)})
    for (const bool turned : {false, true})
      for (const auto& e : errors_of(dp, tp, -1, 0, turned)) EXPECT_EQ(e, "");
}

TEST(replicas, the_first_tensor_that_differs_is_named_with_its_ranks_on_every_rank) {
  const char* const names[] = {"weight first is with", "weight second is with", "optimizer state mean.second is with"};
  for (int tensor = 0; tensor < 3; ++tensor)
    for (const bool turned : {false, true})
      for (const auto& e : errors_of(3, 1, 1, tensor, turned)) {
        EXPECT_NE(e.find(names[tensor]), std::string::npos) << e;
        EXPECT_NE(e.find("on ranks 0 and 2"), std::string::npos) << e;
        EXPECT_NE(e.find("on rank 1"), std::string::npos) << e;
        EXPECT_NE(e.find("step 4 is not saved"), std::string::npos) << e;
      }
}

TEST(replicas, parts_are_compared_with_the_same_parts_and_whole_tensors_with_all) {
  for (const auto& e : errors_of(2, 2, 3, 0)) {
    EXPECT_NE(e.find("weight first, dim 0 [4, 8) is with"), std::string::npos) << e;
    EXPECT_NE(e.find("on rank 1"), std::string::npos) << e;
    EXPECT_NE(e.find("on rank 3"), std::string::npos) << e;
    EXPECT_EQ(e.find("rank 0"), std::string::npos) << e;
  }
  for (const auto& e : errors_of(1, 2, 1, 1)) EXPECT_NE(e.find("weight second is with"), std::string::npos) << e;
  for (const auto& e : errors_of(1, 2, 1, 0)) EXPECT_EQ(e, "") << "there is no replica to compare with";
}

}  // namespace
}  // namespace hpcdl::train
