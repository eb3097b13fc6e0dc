#include "hpcdl/io/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"

namespace hpcdl::io {
namespace {

constexpr auto kFlushEvery = std::chrono::seconds(10);

/// Writes one message of the protobuf wire format: a key (field << 3 | kind), then the value.
class Message {
 public:
  Message& varint(int field, std::uint64_t v) {
    key(field, 0);
    raw_varint(v);
    return *this;
  }
  Message& bytes(int field, std::string_view v) {
    key(field, 2);
    raw_varint(v.size());
    out_ += v;
    return *this;
  }
  Message& message(int field, const Message& m) { return bytes(field, m.out_); }
  template <class F> Message& fixed(int field, F v) {
    key(field, sizeof(F) == 8 ? 1 : 5);
    std::array<char, sizeof(F)> raw;
    std::memcpy(raw.data(), &v, sizeof(F));
    out_.append(raw.data(), raw.size());
    return *this;
  }
  const std::string& text() const { return out_; }

 private:
  void key(int field, int kind) { raw_varint(static_cast<std::uint64_t>(field << 3 | kind)); }
  void raw_varint(std::uint64_t v) {
    for (; v >= 0x80; v >>= 7) out_ += static_cast<char>(v | 0x80);
    out_ += static_cast<char>(v);
  }
  std::string out_;
};

/// Event: 1 wall_time, 2 step; the caller adds 3 file_version, 5 summary or 7 session_log.
Message event(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return Message().fixed(1, now.count()).varint(2, static_cast<std::uint64_t>(step));
}

/// Summary: 1 value.
std::string summary_event(std::int64_t step, const Message& value) {
  return event(step).message(5, Message().message(1, value)).text();
}

std::uint32_t mask(std::uint32_t c) { return ((c >> 15) | (c << 17)) + 0xa282ead8u; }

template <class T> void append_raw(std::string& out, T v) {
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &v, sizeof(T));
  out.append(raw.data(), raw.size());
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] ? name.data() : "localhost";
}

}  // namespace

std::string tensorboard_record(std::string_view bytes) {
  std::string out;
  append_raw(out, static_cast<std::uint64_t>(bytes.size()));
  append_raw(out, mask(crc32c(out)));
  out += bytes;
  append_raw(out, mask(crc32c(bytes)));
  return out;
}

TensorBoardWriter::TensorBoardWriter(const fs::path& folder, std::optional<std::int64_t> resumed_at) {
  make_folder(folder);
  const auto seconds = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  for (int n = 0; !fd_; ++n) {
    path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", seconds, host_name(), ::getpid(), n);
    fd_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!fd_ && errno != EEXIST) fail_file(path_, "create", errno);
  }
  add(event(0).bytes(3, "brain.Event:2").text());
  // SessionLog: 1 status = START.
  if (resumed_at) add(event(*resumed_at + 1).message(7, Message().varint(1, 1)).text());
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    if (fd_) flush();
  } catch (const Error&) {  // a destructor cannot report it
  }
}

void TensorBoardWriter::add(std::string_view bytes) {
  buffer_ += tensorboard_record(bytes);
  if (std::chrono::steady_clock::now() - flushed_ > kFlushEvery) flush();
}

void TensorBoardWriter::scalar(std::string_view tag, float value, std::int64_t step) {
  add(summary_event(step, Message().bytes(1, tag).fixed(2, value)));
}

void TensorBoardWriter::text(std::string_view tag, std::string_view markdown, std::int64_t step) {
  // TensorProto: 1 dtype = DT_STRING, 2 shape {2 dim {1 size}}, 8 string_val; SummaryMetadata: 1 plugin_data {1 name}.
  const Message shape = Message().message(2, Message().varint(1, 1));
  const Message tensor = Message().varint(1, 7).message(2, shape).bytes(8, markdown);
  const Message metadata = Message().message(1, Message().bytes(1, "text"));
  add(summary_event(step, Message().bytes(1, tag).message(8, tensor).message(9, metadata)));
}

void TensorBoardWriter::flush() {
  flushed_ = std::chrono::steady_clock::now();
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const auto n = ::write(fd_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      buffer_.clear();
      fail_file(path_, "write", error);
    }
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  buffer_.clear();
}

}  // namespace hpcdl::io
