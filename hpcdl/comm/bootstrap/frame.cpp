#include "hpcdl/comm/bootstrap/frame.h"

#include <algorithm>

namespace hpcdl::comm {

namespace {

constexpr std::size_t kHeader = FrameHeader::kBytes;
constexpr std::size_t kAtOnce = 1 << 20;  // most bytes that one call reads, so that other connections have their turn
constexpr std::size_t kKept = 1 << 20;    // bytes of memory that a connection keeps

}  // namespace

FrameHeader FrameHeader::parse(std::string_view bytes, std::size_t largest) {
  Unpacker in(bytes);
  FrameHeader h;
  h.size = in.number<std::uint32_t>(), h.id = in.number<std::uint32_t>(), h.kind = in.number<std::uint32_t>();
  require(h.size <= largest && h.kind <= static_cast<std::uint32_t>(FrameKind::bye), "dist",
          "the peer sent something that is not a message of the store");
  return h;
}

/// Number of bytes that may be read now.
std::size_t Connection::room() const {
  if (trusted_) return kAtOnce;
  const std::size_t have = in_.size() - parsed_;
  if (have < kHeader) return kHeader - have;
  return kHeader + FrameHeader::parse(std::string_view(in_).substr(parsed_), largest()).size - have;
}

bool Connection::fill() {
  std::byte block[16384];
  for (std::size_t total = 0; total < kAtOnce;) {
    const std::size_t most = std::min(room(), sizeof block);
    if (most == 0) return true;
    std::size_t got = 0;
    const Io io = receive_some(socket_, std::span(block, most), got);
    if (io != Io::done) return io == Io::wait;
    in_.append(reinterpret_cast<const char*>(block), got);
    total += got;
  }
  return true;
}

std::optional<Frame> Connection::next() {
  const auto rest = std::string_view(in_).substr(parsed_);
  if (rest.size() < kHeader) return std::nullopt;
  const auto header = FrameHeader::parse(rest, largest());
  if (rest.size() - kHeader < header.size) return std::nullopt;
  Frame frame{static_cast<FrameKind>(header.kind), header.id, std::string(rest.substr(kHeader, header.size))};
  parsed_ += kHeader + header.size;
  if (parsed_ == in_.size() || parsed_ > (1 << 16)) in_.erase(0, parsed_), parsed_ = 0;
  if (in_.empty() && in_.capacity() > kKept) in_.shrink_to_fit();
  return frame;
}

void Connection::put(const Frame& frame) {
  require(frame.payload.size() <= kLargest, "dist",
          "a value of {} bytes is too large for the store; expected at most {}", frame.payload.size(), kLargest);
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
