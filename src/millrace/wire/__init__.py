"""Wire: control messages over gRPC, bulk data over TCP. Only this room knows gRPC and sockets.

* :mod:`~millrace.wire.control.control_server`: the dispatcher's end of the control protocol (asyncio).
* :mod:`~millrace.wire.control.control_client`: the end of workers and consumers (threads).
* :mod:`~millrace.wire.data.data_connection`: bytes from workers to consumers, on :mod:`~millrace.wire.data.frames`.
"""
