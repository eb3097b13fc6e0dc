#include "hpcdl/io/dcp/dcp_writer.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/pickle_text.h"
#include "hpcdl/io/dcp/torch_tensor.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {
namespace {

namespace p = dcp::pickled;

constexpr std::string_view kFile = "__0_0.distcp";
constexpr std::int64_t kAlignment = 64;  // of elements, as torch.save() has it

Shape zeros(int rank) {
  Shape s;
  while (s.rank() < rank) s.push_back(0);
  return s;
}

std::string of_metadata(std::string_view type) { return p::global("torch.distributed.checkpoint.metadata", type); }
std::string numbers(const Shape& shape) { return p::tuple(std::span(shape.begin(), shape.end())); }
std::string size_of(const Shape& shape) { return p::call(p::global("torch", "Size"), p::tuple({numbers(shape)})); }

/// What torch.save() pickles of a tensor whose storage is the file data/0.
std::string pickled_tensor(const Spec& spec) {
  const auto storage = p::tuple({p::text("storage"), p::global("torch", dcp::storage_name(spec.dtype)), p::text("0"),
                                 p::text("cpu"), p::integer(spec.size())});
  const auto hooks = p::call(p::global("collections", "OrderedDict"), p::tuple({}));
  const auto arguments = p::tuple({p::persistent(storage), p::integer(0), numbers(spec.shape),
                                   numbers(contiguous_strides(spec.shape)), p::boolean(false), hooks});
  return p::document(p::call(p::global("torch._utils", "_rebuild_tensor_v2"), arguments));
}

}  // namespace

DcpWriter::DcpWriter(const fs::path& folder, std::vector<NamedSpec> tensors, std::int64_t most_bytes)
    : folder_(folder), tensors_(std::move(tensors)), file_(folder / kFile) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    require(!dcp::storage_name(tensors_[t].spec.dtype).empty(), "io",
            "tensor {}: expected a type that torch has a storage for, found {}", shown(tensors_[t].name),
            dtype_name(tensors_[t].spec.dtype));
    divide(t, most_bytes);
  }
  if (!chunks_.empty()) begin_archive();
}

void DcpWriter::divide(std::size_t tensor, std::int64_t most_bytes) {
  const auto& [name, spec] = tensors_[tensor];
  if (spec.shape.rank() == 0 || spec.bytes() <= most_bytes) {
    chunks_.push_back({tensor, zeros(spec.shape.rank()), spec.shape});
    return;
  }
  const auto rows = std::max<std::int64_t>(most_bytes / (spec.bytes() / spec[0]), 1);
  for (std::int64_t at = 0; at < spec[0]; at += rows) {
    Chunk c{tensor, zeros(spec.shape.rank()), spec.shape};
    c.begin[0] = at, c.extent[0] = std::min(rows, spec[0] - at);
    chunks_.push_back(c);
  }
}

std::int64_t DcpWriter::bytes_of(const Chunk& c) const { return Spec{c.extent, tensors_[c.tensor].spec.dtype}.bytes(); }

void DcpWriter::begin_archive() {
  auto& c = chunks_[now_];
  c.offset = file_.size();
  zip_ = {}, crc_ = 0, left_ = bytes_of(c);
  file_.append(zip_.file("archive/data.pkl", pickled_tensor({c.extent, tensors_[c.tensor].spec.dtype})));
  file_.append(zip_.file("archive/byteorder", "little"));
  file_.append(zip_.file("archive/version", "3\n"));
  file_.append(zip_.begin("archive/data/0", left_, kAlignment));
  if (left_ == 0) end_archive();
}

void DcpWriter::end_archive() {
  auto& c = chunks_[now_];
  file_.append(zip_.end(crc_));
  file_.append(zip_.finish());
  c.length = file_.size() - c.offset;
  if (++now_ < chunks_.size()) begin_archive();
}

void DcpWriter::append(const View& piece) {
  std::span bytes(piece.ptr<std::byte>(), static_cast<std::size_t>(piece.bytes()));
  while (!bytes.empty()) {
    require(now_ < chunks_.size() && piece.dtype() == tensors_[chunks_[now_].tensor].spec.dtype, "io",
            "{}: more elements, or of another type, than the tensors have", (folder_ / kFile).string());
    const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(left_)));
    file_.append(part);
    crc_ = dcp::ZipWriter::crc32({reinterpret_cast<const char*>(part.data()), part.size()}, crc_);
    left_ -= std::ssize(part);
    bytes = bytes.subspan(part.size());
    if (left_ == 0) end_archive();
  }
}

void DcpWriter::commit() {
  require(now_ == chunks_.size(), "io", "{}: tensor {} is not complete", (folder_ / kFile).string(),
          now_ < chunks_.size() ? shown(tensors_[chunks_[now_].tensor].name) : "");
  file_.commit();
  write_file_atomic(folder_ / ".metadata", metadata());
}

std::string DcpWriter::metadata() const {
  using Items = std::vector<std::pair<std::string, std::string>>;
  std::vector<std::vector<std::string>> boxes(tensors_.size());
  Items places, tensors, paths;
  for (const auto& c : chunks_) {
    const auto& name = tensors_[c.tensor].name;
    boxes[c.tensor].push_back(
        p::object(of_metadata("ChunkStorageMetadata"), {{"offsets", size_of(c.begin)}, {"sizes", size_of(c.extent)}}));
    const auto index = p::integer(std::ssize(boxes[c.tensor]) - 1);
    places.emplace_back(
        p::object(of_metadata("MetadataIndex"),
                  {{"fqn", p::text(name)}, {"offset", size_of(c.begin)}, {"index", index}}),
        p::object(
            p::global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            {{"relative_path", p::text(kFile)}, {"offset", p::integer(c.offset)}, {"length", p::integer(c.length)}}));
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto& [name, spec] = tensors_[t];
    // By its constructor, since versions of PyTorch disagree about the state that they pickle.
    const auto properties =
        p::call(of_metadata("TensorProperties"), p::tuple({p::global("torch", dcp::torch_name(spec.dtype))}));
    tensors.emplace_back(
        p::text(name),
        p::object(of_metadata("TensorStorageMetadata"),
                  {{"properties", properties}, {"size", size_of(spec.shape)}, {"chunks", p::list(boxes[t])}}));
    paths.emplace_back(p::text(name), p::tuple({p::text(name)}));
  }
  return p::document(p::object(of_metadata("Metadata"), {{"state_dict_metadata", p::dict(tensors)},
                                                         {"planner_data", p::dict(paths)},
                                                         {"storage_data", p::dict(places)}}));
}

}  // namespace hpcdl::io
