#include "hpcdl/parallel/mesh.h"

#include <algorithm>
#include <numeric>

#include "hpcdl/core/error.h"

namespace hpcdl::parallel {

namespace {
constexpr const char* kData = "data";
constexpr const char* kExperts = "ep";
constexpr const char* kSameExperts = "same experts";

void check_experts(const MeshShape& s) {
  const auto ranks = s.dp * s.cp;
  if (s.ep < 1) fail_usage("mesh", "ep must be at least 1, got {}", s.ep);
  if (ranks % s.ep == 0) return;
  std::string fits;
  for (int n = 1; n <= ranks; ++n)
    if (ranks % n == 0) fits += fmt::format("{}{}", fits.empty() ? "" : ", ", n);
  fail_usage("mesh",
             "parallel.ep = {} does not divide the {} ranks of dp {} x cp {}, which divide the experts: ep may be {}",
             s.ep, ranks, s.dp, s.cp, fits);
}
}  // namespace

MeshShape fit(MeshShape s, int world) {
  for (const auto a : {MeshAxis::pp, MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) {
    const int n = s.sizes()[static_cast<std::size_t>(a)], least = a == MeshAxis::dp ? 0 : 1;
    if (n < least) fail_usage("mesh", "{} must be at least {}, got {}", axis_name(a), least, n);
  }
  const std::int64_t others = std::int64_t{s.pp} * s.cp * s.tp;
  const auto product = others * (s.dp ? s.dp : 1);
  if (world == 1 && product > 1) {
    std::string asked;
    for (const auto a : {MeshAxis::pp, MeshAxis::dp, MeshAxis::cp, MeshAxis::tp})
      if (const int n = s.sizes()[static_cast<std::size_t>(a)]; n > 1)
        asked += fmt::format("{}parallel.{} = {}", asked.empty() ? "" : " and ", axis_name(a), n);
    fail_usage("mesh",
               "{}: expected {} ranks, found one: start them with `hpcdl launch -n {} -- train -c run.toml`, mpirun or "
               "srun",
               asked, product, product);
  }
  if (s.dp == 0 && world % others == 0) s.dp = static_cast<int>(world / others);
  else if (s.dp == 0)
    fail_usage(
        "mesh",
        "pp {} x cp {} x tp {} = {} does not divide the {} ranks of the run: start a multiple of {}, or change tp",
        s.pp, s.cp, s.tp, others, world, others);
  if (others * s.dp == world) return check_experts(s), s;
  const std::string fits = world % others == 0
                               ? fmt::format("dp {} would fit, or start {} ranks", world / others, product)
                               : fmt::format("start {} ranks, or choose axes whose product is {}", product, world);
  fail_usage("mesh", "pp {} x dp {} x cp {} x tp {} = {}, but the world has {} ranks: {}", s.pp, s.dp, s.cp, s.tp,
             product, world, fits);
}

Coordinates coordinates(const MeshShape& shape, int position) {
  Coordinates at{};
  for (std::size_t a = kAxes; a-- > 0;) {
    at[a] = position % shape.sizes()[a];
    position /= shape.sizes()[a];
  }
  return at;
}

std::vector<int> positions(const std::vector<int>& host_of_rank) {
  std::vector<int> order(host_of_rank.size()), place(host_of_rank.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return host_of_rank[static_cast<std::size_t>(a)] < host_of_rank[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < order.size(); ++i) place[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  return place;
}

Mesh::Mesh(comm::Group world, const MeshShape& shape) : shape_(fit(shape, world.size())), world_(std::move(world)) {
  std::vector<int> hosts;
  for (int r = 0; r < world_.size(); ++r) hosts.push_back(world_.host(r));
  const int position = positions(hosts)[static_cast<std::size_t>(world_.rank())];
  at_ = coordinates(shape_, position);
  int stride = 1;  // in positions, along the axis
  for (std::size_t a = kAxes; a-- > 0;) {
    const int n = shape_.sizes()[a];
    if (n > 1)
      groups_[a] = world_.split(position - at_[a] * stride, at_[a], std::string(axis_name(static_cast<MeshAxis>(a))));
    stride *= n;
  }
  const int index = index_of_data(), first = position - index * shape_.tp;
  if (shape_.cp > 1) data_ = world_.split(first, index, kData);
  if (shape_.ep == 1) return;
  experts_ = world_.split(first + index / shape_.ep * shape_.ep * shape_.tp, index, kExperts);
  if (shape_.dp * shape_.cp > shape_.ep)
    same_experts_ = world_.split(first + index % shape_.ep * shape_.tp, index, kSameExperts);
}

/// The index of this rank among those along dp and cp.
int Mesh::index_of_data() const { return index(MeshAxis::dp) * shape_.cp + index(MeshAxis::cp); }

Mesh Mesh::described(const MeshShape& shape, int rank) {
  Mesh mesh;
  mesh.shape_ = shape;
  mesh.world_ = comm::Group::described(rank, shape.size(), "world");
  mesh.at_ = coordinates(shape, rank);
  for (std::size_t a = 0; a < kAxes; ++a)
    if (shape.sizes()[a] > 1)
      mesh.groups_[a] =
          comm::Group::described(mesh.at_[a], shape.sizes()[a], std::string(axis_name(static_cast<MeshAxis>(a))));
  const int index = mesh.index_of_data(), ranks = shape.dp * shape.cp;
  if (shape.cp > 1) mesh.data_ = comm::Group::described(index, ranks, kData);
  if (shape.ep == 1) return mesh;
  mesh.experts_ = comm::Group::described(index % shape.ep, shape.ep, kExperts);
  if (ranks > shape.ep) mesh.same_experts_ = comm::Group::described(index / shape.ep, ranks / shape.ep, kSameExperts);
  return mesh;
}

std::string Mesh::describe() const {
  std::string text;
  for (std::size_t a = 0; a < kAxes; ++a)
    if (shape_.sizes()[a] > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis_name(static_cast<MeshAxis>(a)), shape_.sizes()[a]);
  if (shape_.ep > 1) text += fmt::format(", ep {}", shape_.ep);
  return text.empty() ? "one rank" : text;
}

}  // namespace hpcdl::parallel
