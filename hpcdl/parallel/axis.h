#pragma once
// Binds the axes that records name to groups of ranks.

#include "hpcdl/group.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::parallel {

/// A group as an axis of records. It must outlive the programs that are recorded with it.
class GroupAxis final : public Ranks {
 public:
  explicit GroupAxis(comm::Group group, comm::Algorithm algorithm = comm::Algorithm::automatic)
      : group_(std::move(group)), algorithm_(algorithm) {}
  GroupAxis(const GroupAxis&) = delete;
  GroupAxis& operator=(const GroupAxis&) = delete;

  const comm::Group& group() const { return group_; }
  Axis axis(std::string_view tensor = {}) const { return Axis(group_.name(), group_.size(), this).with(tensor); }

  void all_reduce(Stream& s, const Tensor& x, bool maximum, std::string_view tensor) const override;
  void reduce_scatter(Stream& s, const Tensor& mine, const View& all, std::string_view tensor) const override;
  void all_gather(Stream& s, const Tensor& all, const View& mine, std::string_view tensor) const override;
  void all_to_all(Stream& s, const Tensor& theirs, const View& mine, std::string_view tensor) const override;
  Ticket rotate(Stream& s, const Tensor& theirs, const View& mine, int distance,
                std::string_view tensor) const override;

 private:
  comm::Group group_;
  comm::Algorithm algorithm_;
};

/// The group to which an axis is bound.
inline const comm::Group& group_of(const Axis& axis) { return static_cast<const GroupAxis&>(axis.bound()).group(); }

}  // namespace hpcdl::parallel
