package node

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"go.etcd.io/bbolt"

	"stepd/step"
)

func jobKey(job uint32) []byte { return binary.BigEndian.AppendUint32(nil, job) }

func stepKey(id step.ID) []byte {
	return binary.BigEndian.AppendUint32(jobKey(id.Job), id.Step)
}

func endedKey(t time.Time, id step.ID) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(t.UnixNano())), stepKey(id)...)
}

// getNumber reads a number, 0 where there is none.
func getNumber(b *bbolt.Bucket, key []byte) uint32 {
	v := b.Get(key)
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

func putNumber(b *bbolt.Bucket, key []byte, n uint32) error {
	return b.Put(key, binary.BigEndian.AppendUint32(nil, n))
}

func putJSON(b *bbolt.Bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, data)
}

func getJSON(b *bbolt.Bucket, key []byte, v any) error {
	data := b.Get(key)
	if data == nil {
		return errUnknown
	}
	return json.Unmarshal(data, v)
}
