class Sender:
    def __init__(self, request): raise NotImplementedError
