#pragma once

#include <memory>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/nccl/communicator.h"
#include "hpcdl/comm/nccl/peer_reduce.h"

namespace hpcdl::comm {

/// Orders calls on different streams as they were made, as NCCL does for its own.
class InOrder {
 public:
  /// To be called before a call.
  void enter(const Stream& s);
  /// To be called after it.
  void leave(const Stream& s);

 private:
  Event last_;
  void* stream_ = nullptr;
  unsigned long long capture_ = 0;  // of the last call; 0: none. A capture must not wait for work outside of it.
};

class CudaGroup final : public DeviceGroup {
 public:
  CudaGroup(const HostExchange& host, Device device);

  void all_reduce(const Stream& s, const Tensor& x, Reduce op, Algorithm a, bool beside) override;
  void reduce_scatter(const Stream& s, const Tensor& out, const View& in, Reduce op) override;
  void all_gather(const Stream& s, const Tensor& out, const View& in) override;
  void all_to_all(const Stream& s, const Tensor& out, const View& in) override;
  void broadcast(const Stream& s, const Tensor& x, int root) override;
  void send(const Stream& s, const View& x, int to) override;
  void receive(const Stream& s, const Tensor& x, int from) override;
  void barrier(const Stream& s) override;
  bool writes_to_peers() const override { return peers_ != nullptr; }
  void wait(const Stream& s) override { wait(s, "what was queued"); }
  std::optional<std::string> error() const override { return communicator_.error(); }
  void give_up() noexcept override;

  /// Null if the GPUs cannot write each other's memory.
  const PeerReduce* peers() const { return peers_.get(); }

 private:
  void warm_up();
  void wait(const Stream& s, const char* what);
  bool by_peers(const Tensor& x, Reduce op, Algorithm a) const;
  /// A call of NCCL on the communicator of this group; may be a lambda that makes several calls.
  template <class F> void call(const Stream& s, const char* name, F&& f);

  std::string name_;
  int rank_, size_;
  double timeout_;
  Device device_;
  nccl::Communicator communicator_;
  std::unique_ptr<PeerReduce> peers_;
  OwnedTensor token_;  // one element, for barriers
  InOrder order_;
};

}  // namespace hpcdl::comm
