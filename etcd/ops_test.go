package etcd

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// ownKV is a KV of a program's own.
type ownKV struct{ clientv3.KV }

// kvServer keeps what it was asked for.
type kvServer struct {
	pb.KVClient
	got *pb.TxnRequest
}

func (s *kvServer) Txn(_ context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	s.got = in
	return &pb.TxnResponse{}, nil
}

// A KV of the program's own is asked for what the driver's own messages say.
func TestOwnKV(t *testing.T) {
	kept := opPut("k", "v", 0)
	kept.GetRequestPut().IgnoreLease = true
	one := opList("k", true)
	one.GetRequestRange().Limit = 1
	all := []*pb.RequestOp{
		opPut("k", "v", 0), opPut("k", "v", 7), kept, opGet("k"), opList("k", false), opList("k", true),
		opKey("k"), opDelete("k"), one,
	}
	ifs := []*pb.Compare{
		createdAt("k", 0), created("k", greater, 3), none("k"), modified("k", less, 4), says("k", equal, "v"),
		upTo("z", modified("k", equal, 5)), allUnder(says("k", less, "v")), under("k", 7),
	}
	want := &pb.TxnRequest{Compare: ifs, Success: append(all, opTxn(ifs, all, all)), Failure: all}
	var server kvServer
	client := clientv3.NewCtxClient(t.Context())
	client.KV = ownKV{clientv3.NewKVFromKVClient(&server, nil)}
	if _, err := committerOf(client)(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if got := server.got.String(); got != want.String() {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The call options of a client go with its transactions.
func TestCallOptions(t *testing.T) {
	const most = 12345
	var got int
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop(), MaxCallSendMsgSize: most,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(
			_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			for _, o := range opts {
				if o, ok := o.(grpc.MaxSendMsgSizeCallOption); ok {
					got = o.MaxSendMsgSize
				}
			}
			return nil
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := committerOf(client)(t.Context(), &pb.TxnRequest{}); err != nil {
		t.Fatal(err)
	}
	if got != most {
		t.Errorf("most bytes of a message: got %d, want %d", got, most)
	}
}
