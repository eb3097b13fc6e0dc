// One file of CIFAR: bytes to pixels and targets.

#include <algorithm>
#include <iterator>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/io/pickle.h"

namespace hpcdl::data {
namespace {

constexpr std::size_t kArea = kCifarBytes / 3;

/// The files hold one plane for each colour.
void interleave(std::string_view planes, std::vector<std::uint8_t>& to) {
  const auto before = to.size();
  to.resize(before + kCifarBytes);
  std::uint8_t* out = to.data() + before;
  for (std::size_t i = 0; i < kArea; ++i, out += 3)
    for (std::size_t c = 0; c < 3; ++c) out[c] = static_cast<std::uint8_t>(planes[c * kArea + i]);
}

void add_target(CifarPiece& piece, std::int64_t target, int classes, const std::string& from) {
  require(target >= 0 && target < classes, "data",
          "{}: image {} has class {}; expected 0 to {}: damaged, or another data set", from, piece.targets.size(),
          target, classes - 1);
  piece.targets.push_back(static_cast<std::int32_t>(target));
}

}  // namespace

CifarPiece read_cifar_binary(std::string_view bytes, int classes, const std::string& from) {
  const std::size_t labels = classes == 10 ? 1 : 2, wanted = classes == 100 ? 1 : 0,
                    row = labels + kCifarBytes;  // CIFAR-100: coarse, then fine
  require(!bytes.empty() && bytes.size() % row == 0, "data",
          "{}: {} bytes are not a number of images of {} bytes: truncated? Fetch it again", from, bytes.size(), row);
  CifarPiece piece;
  for (std::size_t at = 0; at < bytes.size(); at += row) {
    add_target(piece, static_cast<unsigned char>(bytes[at + wanted]), classes, from);
    interleave(bytes.substr(at + labels, kCifarBytes), piece.pixels);
  }
  return piece;
}

namespace {

namespace pickle = io::pickle;

/// The Python objects in CIFAR archives: arrays of NumPy, and the byte strings that Python 3 wrote.
constexpr std::string_view kReconstruct[] = {"numpy.core.multiarray._reconstruct",
                                             "numpy._core.multiarray._reconstruct"};
constexpr std::string_view kDtype = "numpy.dtype", kEncode = "_codecs.encode";
constexpr std::string_view kKnown[] = {kReconstruct[0], kReconstruct[1], "numpy.ndarray", kDtype, kEncode};

/// Converts Latin-1 characters that Python 3 wrote as UTF-8 back to bytes.
std::optional<std::string> latin1_of_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c < 0x80) {
      out.push_back(s[i]);
      continue;
    }
    if ((c != 0xC2 && c != 0xC3) || i + 1 == s.size() || (static_cast<unsigned char>(s[i + 1]) & 0xC0) != 0x80)
      return std::nullopt;
    out.push_back(static_cast<char>((c & 3) << 6 | (static_cast<unsigned char>(s[++i]) & 0x3F)));
  }
  return out;
}

std::optional<std::string> string_of(const pickle::Value& v) {
  if (const auto* text = v.as<pickle::Text>()) return std::string(text->text);
  if (const auto* bytes = v.as<pickle::Bytes>()) return std::string(bytes->bytes);
  const auto* arguments = v.made_by(kEncode);
  if (!arguments || arguments->size() != 2) return std::nullopt;
  const auto *text = (*arguments)[0]->as<pickle::Text>(), *encoding = (*arguments)[1]->as<pickle::Text>();
  return text && encoding && encoding->text == "latin1" ? latin1_of_utf8(text->text) : std::nullopt;
}

bool is_bytes_dtype(const pickle::Value& v) {
  const auto* arguments = v.made_by(kDtype);
  if (!arguments || arguments->empty()) return false;
  const auto* name = (*arguments)[0]->as<pickle::Text>();
  return name && (name->text == "u1" || name->text == "|u1");
}

/// The pixels of an array of `rows` images. Throws Error if it is anything else.
std::string pixels_of(const pickle::Value* v, std::size_t rows, const std::string& from) {
  // The state of an array: version, shape, dtype, whether it is stored by columns, bytes.
  const auto* object = v ? v->as<pickle::Object>() : nullptr;
  const bool array = object && std::ranges::find(kReconstruct, object->name) != std::end(kReconstruct);
  const auto* state = array && object->state ? object->state->as<pickle::Tuple>() : nullptr;
  const auto* shape = state && state->items.size() == 5 ? state->items[1]->as<pickle::Tuple>() : nullptr;
  require(shape && is_bytes_dtype(*state->items[2]), "data", "{}: expected \"data\" to be an array of bytes", from);
  const auto* by_columns = state->items[3]->as<bool>();
  require(by_columns && !*by_columns, "data", "{}: an array stored by columns; expected by rows", from);
  const auto dim = [&](std::size_t i) {
    const auto* n = i < shape->items.size() ? shape->items[i]->as<std::int64_t>() : nullptr;
    return n ? *n : -1;
  };
  require(rows > 0 && shape->items.size() == 2 && dim(0) == static_cast<std::int64_t>(rows) &&
              dim(1) == static_cast<std::int64_t>(kCifarBytes),
          "data", "{}: expected as many rows of {} bytes as there are labels, {}", from, kCifarBytes, rows);
  auto bytes = string_of(*state->items[4]);
  require(bytes && bytes->size() == rows * kCifarBytes, "data", "{}: the array does not hold the bytes of its shape",
          from);
  return std::move(*bytes);
}

}  // namespace

CifarPiece read_cifar_python(std::string_view bytes, int classes, const std::string& from) {
  const auto document = pickle::read(bytes, from, kKnown);
  const char* key = classes == 100 ? "fine_labels" : classes == 20 ? "coarse_labels" : "labels";
  const auto* labels = pickle::find(document.root(), key);
  const auto* list = labels ? labels->as<pickle::List>() : nullptr;
  require(list, "data", "{}: expected a dictionary with an array \"data\" and a list \"{}\": not a batch of CIFAR-{}",
          from, key, classes);
  const auto pixels = pixels_of(pickle::find(document.root(), "data"), list->items.size(), from);
  CifarPiece piece;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const auto* target = list->items[i]->as<std::int64_t>();
    require(target, "data", "{}: label {} is not a number", from, i);
    add_target(piece, *target, classes, from);
    interleave(std::string_view(pixels).substr(i * kCifarBytes, kCifarBytes), piece.pixels);
  }
  return piece;
}

std::vector<std::string> read_cifar_names(std::string_view bytes, std::string_view key, const std::string& from) {
  const auto document = pickle::read(bytes, from, kKnown);
  const auto* value = pickle::find(document.root(), key);
  const auto* list = value ? value->as<pickle::List>() : nullptr;
  require(list, "data", "{}: expected a list \"{}\"", from, key);
  std::vector<std::string> names;
  for (const auto* item : list->items)
    if (auto name = string_of(*item)) names.push_back(std::move(*name));
  return names;
}

}  // namespace hpcdl::data
