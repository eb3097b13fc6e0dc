#include "hpcdl/comm/bootstrap/store.h"
#include "hpcdl/comm/watch/channel.h"

namespace hpcdl::comm {
namespace {

class StoreChannel final : public Channel {
 public:
  explicit StoreChannel(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  int rank() const override { return store_->rank(); }
  int size() const override { return store_->world(); }
  std::string host(int rank) const override { return store_->hosts()[static_cast<std::size_t>(rank)]; }
  void send(int to, std::string_view bytes) override { store_->send(to, bytes); }
  void finish() override { store_->finish(); }
  void listen(OnMessage on_message, OnLost on_lost) override {
    store_->listen(std::move(on_message), std::move(on_lost));
  }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace

std::unique_ptr<Channel> store_channel(std::shared_ptr<Store> store) {
  return std::make_unique<StoreChannel>(std::move(store));
}

}  // namespace hpcdl::comm
