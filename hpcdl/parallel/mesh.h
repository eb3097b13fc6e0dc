#pragma once
// The ranks of a world as a grid with named axes.

#include <array>
#include <string>
#include <vector>

#include "hpcdl/group.h"

namespace hpcdl::parallel {

/// Axes of a mesh, the slowest first: neighbours along tp exchange the most, and are neighbours in the world.
enum class MeshAxis : std::uint8_t { pp, dp, cp, tp };
inline constexpr int kAxes = 4;
constexpr std::string_view axis_name(MeshAxis a) {
  constexpr std::string_view names[] = {"pp", "dp", "cp", "tp"};
  return names[static_cast<int>(a)];
}

/// Number of ranks along each axis: pipeline stages, data, context, tensor. ep is no axis of its own: it divides the dp x cp
/// ranks into groups, and each group divides the experts of mixtures.
struct MeshShape {
  int pp = 1, dp = 1, cp = 1, tp = 1, ep = 1;

  std::array<int, kAxes> sizes() const { return {pp, dp, cp, tp}; }
  int size() const { return pp * dp * cp * tp; }
  bool operator==(const MeshShape&) const = default;
};

/// The shape for a world of this many ranks; dp = 0: all ranks that the other axes leave. Throws UsageError
/// if the product is not the size of the world, or if ep does not divide dp x cp; it names the numbers and what would
/// fit.
MeshShape fit(MeshShape shape, int world);

/// The position of a rank along each axis.
using Coordinates = std::array<int, kAxes>;
Coordinates coordinates(const MeshShape& shape, int position);

/// Positions of ranks in the mesh: ranks of one host are neighbours, in their order, for any order that the launcher
/// gave them.
std::vector<int> positions(const std::vector<int>& host_of_rank);

class Mesh {
 public:
  /// A mesh of one rank.
  Mesh() = default;
  /// Collective over `world`.
  Mesh(comm::Group world, const MeshShape& shape);

  /// The position of a rank in a mesh without processes, on one host: programs can be recorded, but not run.
  static Mesh described(const MeshShape& shape, int rank);

  const MeshShape& shape() const { return shape_; }
  const comm::Group& world() const { return world_; }
  /// The ranks that differ from this one only along that axis, in its order.
  const comm::Group& along(MeshAxis a) const { return groups_[static_cast<std::size_t>(a)]; }
  const comm::Group& dp() const { return along(MeshAxis::dp); }
  const comm::Group& tp() const { return along(MeshAxis::tp); }
  const comm::Group& pp() const { return along(MeshAxis::pp); }
  const comm::Group& cp() const { return along(MeshAxis::cp); }
  /// The ranks that hold the same weights and have parts of the same batches, along dp and cp, with cp as the faster
  /// axis: they sum gradients and losses.
  const comm::Group& data() const { return shape_.cp > 1 ? data_ : dp(); }
  /// Of the ranks along data(), which count in its order: the neighbours that divide the experts among themselves, and the
  /// ranks that have the same experts as this one. One rank and data() if ep is 1.
  const comm::Group& experts() const { return experts_; }
  const comm::Group& same_experts() const { return shape_.ep > 1 ? same_experts_ : data(); }
  int index(MeshAxis a) const { return at_[static_cast<std::size_t>(a)]; }
  /// "dp 2 x tp 4".
  std::string describe() const;

 private:
  int index_of_data() const;

  MeshShape shape_;
  comm::Group world_;
  std::array<comm::Group, kAxes> groups_;
  comm::Group data_, experts_, same_experts_;
  Coordinates at_{};
};

}  // namespace hpcdl::parallel
