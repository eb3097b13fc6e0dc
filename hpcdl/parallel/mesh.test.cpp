#include "hpcdl/parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

std::string refusal(MeshShape shape, int world) {
  try {
    fit(shape, world);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(mesh, a_product_that_is_not_the_world_is_refused_with_what_would_fit) {
  EXPECT_EQ(refusal({.dp = 3, .tp = 2}, 8),
            "[mesh] pp 1 x dp 3 x cp 1 x tp 2 = 6, but the world has 8 ranks: dp 4 would fit, or start 6 ranks");
  EXPECT_EQ(refusal({.dp = 2, .tp = 3}, 8),
            "[mesh] pp 1 x dp 2 x cp 1 x tp 3 = 6, but the world has 8 ranks: start 6 ranks, or choose axes whose "
            "product is 8");
  EXPECT_NE(refusal({.dp = 0, .tp = 3}, 8).find("does not divide the 8 ranks of the run"), std::string::npos);
  EXPECT_EQ(refusal({.dp = 0, .tp = 2}, 1),
            "[mesh] parallel.tp = 2: expected 2 ranks, found one: start them with `hpcdl launch -n 2 -- train -c "
            "run.toml`, mpirun or srun");
  EXPECT_NE(refusal({.dp = 1, .tp = 0}, 1).find("tp must be at least 1"), std::string::npos);
  EXPECT_NE(refusal({.dp = -1}, 1).find("dp must be at least 0"), std::string::npos);
  EXPECT_NE(refusal({.dp = 1 << 20, .tp = 1 << 20}, 1), "");
}

TEST(mesh, dp_zero_takes_what_the_other_axes_leave) {
  EXPECT_EQ(fit({.dp = 0, .tp = 2}, 8), (MeshShape{.dp = 4, .tp = 2}));
  EXPECT_EQ(fit({.dp = 0}, 1), MeshShape{});
}

TEST(mesh, every_position_has_its_own_coordinates_and_tp_is_the_fastest) {
  const MeshShape shape{.pp = 2, .dp = 3, .cp = 1, .tp = 4};
  std::set<Coordinates> seen;
  for (int i = 0; i < shape.size(); ++i) seen.insert(coordinates(shape, i));
  EXPECT_EQ(static_cast<int>(seen.size()), shape.size());
  EXPECT_EQ(coordinates(shape, 5), (Coordinates{0, 1, 0, 1}));
  EXPECT_EQ(coordinates(shape, 12), (Coordinates{1, 0, 0, 0}));
}

/// The ranks along dp and cp are one group, in which those that share rows are neighbours.
TEST(mesh, ranks_that_share_rows_sum_gradients_with_those_that_share_batches) {
  const MeshShape shape{.pp = 2, .dp = 2, .cp = 3, .tp = 2};
  testing::run_ranks(shape.size(), [&](const comm::Group& world) {
    const Mesh mesh(world, shape);
    const auto& data = mesh.data();
    ASSERT_EQ(data.size(), 6);
    EXPECT_EQ(data.rank(), mesh.index(MeshAxis::dp) * 3 + mesh.index(MeshAxis::cp));
    const auto at = coordinates(shape, world.rank());
    for (int r = 0; r < 6; ++r) {
      auto other = at;
      other[static_cast<std::size_t>(MeshAxis::dp)] = r / 3, other[static_cast<std::size_t>(MeshAxis::cp)] = r % 3;
      EXPECT_EQ(coordinates(shape, data.world_rank(r)), other);
    }
    const auto described = Mesh::described(shape, world.rank());
    EXPECT_EQ(described.data().rank(), data.rank());
    EXPECT_EQ(described.data().size(), 6);
  });
  EXPECT_EQ(Mesh::described({.dp = 4, .tp = 2}, 3).data().name(), "dp");
}

/// Neighbours along dp and cp divide the experts, and those in the same place of each group have the same ones.
TEST(mesh, ranks_that_divide_experts_are_neighbours) {
  const MeshShape shape{.dp = 3, .cp = 2, .tp = 2, .ep = 2};
  testing::run_ranks(shape.size(), [&](const comm::Group& world) {
    const Mesh mesh(world, shape);
    const int index = mesh.data().rank();
    const auto described = Mesh::described(shape, world.rank());
    for (const auto& m : {mesh, described}) {
      EXPECT_EQ(m.experts().size(), 2);
      EXPECT_EQ(m.experts().rank(), index % 2);
      EXPECT_EQ(m.same_experts().size(), 3);
      EXPECT_EQ(m.same_experts().rank(), index / 2);
    }
    for (int r = 0; r < 2; ++r) EXPECT_EQ(mesh.experts().world_rank(r), mesh.data().world_rank(index / 2 * 2 + r));
    for (int r = 0; r < 3; ++r) EXPECT_EQ(mesh.same_experts().world_rank(r), mesh.data().world_rank(2 * r + index % 2));
  });
  EXPECT_EQ(Mesh::described({.dp = 4, .ep = 4}, 2).same_experts().size(), 1);
  EXPECT_EQ(Mesh::described({.dp = 4}, 2).experts().size(), 1);
  EXPECT_EQ(refusal({.dp = 0, .ep = 3}, 4),
            "[mesh] parallel.ep = 3 does not divide the 4 ranks of dp 4 x cp 1, which divide the experts: ep may be 1, "
            "2, 4");
}

TEST(mesh, ranks_of_one_host_stand_together_whatever_the_launcher_did) {
  EXPECT_EQ(positions({0, 0, 2, 2}), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(positions({0, 1, 0, 1}), (std::vector{0, 2, 1, 3})) << "round robin";
}

}  // namespace
}  // namespace hpcdl::parallel
