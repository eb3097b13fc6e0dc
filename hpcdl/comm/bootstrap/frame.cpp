#include "hpcdl/comm/bootstrap/frame.h"

namespace hpcdl::comm {

namespace {
constexpr std::size_t kHeader = 12;
}

bool Connection::fill() {
  std::byte block[16384];
  for (std::size_t got = 0;;) {
    const Io io = receive_some(socket_, block, got);
    if (io != Io::done) return io == Io::wait;
    in_.append(reinterpret_cast<const char*>(block), got);
  }
}

std::optional<Frame> Connection::next() {
  Unpacker header(std::string_view(in_).substr(parsed_));
  if (in_.size() - parsed_ < kHeader) return std::nullopt;
  const auto size = header.number<std::uint32_t>(), id = header.number<std::uint32_t>(),
             kind = header.number<std::uint32_t>();
  require(size <= kLargest && kind <= static_cast<std::uint32_t>(FrameKind::bye), "dist",
          "the peer does not speak the store's language");
  if (in_.size() - parsed_ < kHeader + size) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), id, in_.substr(parsed_ + kHeader, size)};
  parsed_ += kHeader + size;
  if (parsed_ == in_.size() || parsed_ > (1 << 16)) in_.erase(0, parsed_), parsed_ = 0;
  return frame;
}

void Connection::put(const Frame& frame) {
  require(frame.payload.size() <= kLargest, "dist", "a value of {} bytes is too large for the store; at most {}",
          frame.payload.size(), kLargest);
  Packer header;
  header << static_cast<std::uint32_t>(frame.payload.size()) << frame.id << static_cast<std::uint32_t>(frame.kind);
  out_ += header.take();
  out_ += frame.payload;
}

bool Connection::flush() {
  while (has_output()) {
    std::size_t sent = 0;
    const Io io = send_some(socket_, std::as_bytes(std::span(out_).subspan(sent_)), sent);
    sent_ += sent;
    if (io != Io::done) return io == Io::wait;
  }
  out_.clear();
  sent_ = 0;
  return true;
}

}  // namespace hpcdl::comm
