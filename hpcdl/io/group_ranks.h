#pragma once

#include "hpcdl/group.h"
#include "hpcdl/io/ranks.h"
#include "hpcdl/pool.h"

namespace hpcdl::io {

/// The ranks of a group (the world of a run), by its CPU collectives.
class GroupRanks final : public Ranks {
 public:
  explicit GroupRanks(const comm::Group& group) : group_(group.blocking()) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& mine) override;
  void send(std::span<const std::byte> bytes, int to) override;
  void receive(std::span<std::byte> bytes, int from) override;

 private:
  comm::Group group_;
  Pool pool_{1};
  Stream stream_{pool_};
};

}  // namespace hpcdl::io
