#include "hpcdl/comm/transport/link.h"

#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

namespace hpcdl::comm {
namespace {

std::byte nothing;  // where the bytes of an empty message go

}  // namespace

void Link::open(Socket socket) {
  socket_ = std::move(socket);
  let_read_late(socket_);
  advance();
}

void Link::send(Message& m) {
  queue_.push_back({&m, {m.tag, 0, m.bytes}, 0, m.from, {}});
  write();
}

void Link::receive(Message& m) {
  const auto it = std::find_if(unasked_.begin(), unasked_.end(), [&](const Unasked& u) { return u.tag == m.tag; });
  if (it == unasked_.end()) {
    wanted_.push_back(&m);
    return read();
  }
  give(m, it);
}

void Link::give(Message& m, std::deque<Unasked>::iterator it) {
  m.wrong_size = it->bytes.size() != m.bytes;
  if (!m.wrong_size && m.bytes > 0) std::memcpy(m.to, it->bytes.data(), m.bytes);
  m.done = true;
  unasked_.erase(it);
}

void Link::take_back(Message& m) {
  std::erase(wanted_, &m);
  if (target_message_ == &m) {  // the rest of it is discarded
    buffer_.resize(header_.bytes);
    target_ = buffer_.data();
    target_message_ = nullptr;
    keep_buffer_ = false;
  }
  const auto it = std::find_if(queue_.begin(), queue_.end(), [&](const Outgoing& o) { return o.message == &m; });
  if (it == queue_.end()) return;
  if (it->sent == 0) {
    queue_.erase(it);
    return;
  }
  it->message = nullptr;  // a part of it has been sent: the peer must find the next header where it expects it
  it->rest.assign(it->from, it->from + it->header.bytes);
  it->from = it->rest.data();
}

void Link::advance() {
  if (!queue_.empty()) write();
  if (!wanted_.empty() || target_ || reading_header_bytes_ > 0) read();
}

void Link::write() {
  while (is_open() && !queue_.empty() && !closed_) {
    Outgoing& o = queue_.front();
    std::span<const std::byte> part;
    if (o.sent < sizeof(Header))
      part = {reinterpret_cast<const std::byte*>(&o.header) + o.sent, sizeof(Header) - o.sent};
    else part = {o.from + (o.sent - sizeof(Header)), o.header.bytes - (o.sent - sizeof(Header))};
    std::size_t sent = 0;
    if (!part.empty()) {
      const Io io = send_some(socket_, part, sent);
      if (io == Io::closed) closed_ = true;
      if (io != Io::done) return;
    }
    o.sent += sent;
    if (o.sent < sizeof(Header) + o.header.bytes) continue;
    if (o.message) o.message->done = true;
    queue_.pop_front();
  }
}

void Link::read() {
  while (is_open() && !closed_) {
    if (!have_header_ && !read_header()) return;
    if (!target_) choose_target();
    if (!target_ || !read_bytes()) return;
    finish();
    if (wanted_.empty()) return;
  }
}

bool Link::read_header() {
  while (reading_header_bytes_ < sizeof(Header)) {
    std::size_t got = 0;
    const Io io = receive_some(
        socket_,
        {reinterpret_cast<std::byte*>(&header_) + reading_header_bytes_, sizeof(Header) - reading_header_bytes_}, got);
    if (io == Io::closed) closed_ = true;
    if (io != Io::done) return false;
    reading_header_bytes_ += got;
  }
  if (!header_.makes_sense()) {
    closed_ = broken_ = true;
    return false;
  }
  have_header_ = true;
  reading_header_bytes_ = 0;
  got_ = 0;
  return true;
}

void Link::choose_target() {
  const auto it = std::find_if(wanted_.begin(), wanted_.end(), [&](const Message* m) { return m->tag == header_.tag; });
  if (it != wanted_.end() && (*it)->bytes == header_.bytes) {
    target_message_ = *it;
    target_ = target_message_->bytes > 0 ? target_message_->to : &nothing;
    wanted_.erase(it);
    return;
  }
  if (it != wanted_.end()) {
    (*it)->wrong_size = (*it)->done = true;
    wanted_.erase(it);
  }
  if (wanted_.empty()) return;  // parked
  buffer_.resize(std::clamp<std::size_t>(header_.bytes, 1, kAhead));
  target_ = buffer_.data();
  target_message_ = nullptr;
  keep_buffer_ = true;
}

/// Bytes that target_ has room for. A long message without a receive takes memory as it arrives: the size in its header
/// is only a claim of the peer.
std::size_t Link::make_room() {
  if (target_message_ || !keep_buffer_) return header_.bytes - got_;
  if (got_ == buffer_.size()) {
    buffer_.resize(std::min<std::size_t>(header_.bytes, 2 * got_));
    target_ = buffer_.data();
  }
  return buffer_.size() - got_;
}

bool Link::read_bytes() {
  while (got_ < header_.bytes) {
    std::size_t got = 0;
    const std::size_t room = make_room();
    const Io io = receive_some(socket_, {target_ + got_, room}, got);
    if (io == Io::closed) closed_ = true;
    if (io != Io::done) return false;
    got_ += got;
  }
  return true;
}

void Link::finish() {
  if (target_message_) {
    target_message_->done = true;
  } else if (keep_buffer_) {
    buffer_.resize(header_.bytes);
    unasked_.push_back({header_.tag, std::move(buffer_)});
    // A receive may have been posted while it arrived.
    const auto it =
        std::find_if(wanted_.begin(), wanted_.end(), [&](const Message* m) { return m->tag == header_.tag; });
    if (it != wanted_.end()) {
      Message& m = **it;
      wanted_.erase(it);
      give(m, unasked_.end() - 1);
    }
  }
  buffer_ = {};
  target_ = nullptr;
  target_message_ = nullptr;
  have_header_ = false;
}

bool Link::peer_is_there() const {
  if (closed_) return false;
  if (!is_open()) return true;
  pollfd p{socket_.fd(), POLLRDHUP, 0};
  if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLRDHUP | POLLHUP | POLLERR))) return true;
  int unread = 0;
  return ioctl(socket_.fd(), FIONREAD, &unread) == 0 && unread > 0;
}

}  // namespace hpcdl::comm
